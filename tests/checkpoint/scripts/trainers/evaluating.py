"""A tiny language model that is evaluated, saved and, at the end, the best one again."""

import random
import sys

import torch
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(5)
config = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=16,
    attention_dropout=0.1,
)
model = LlamaForCausalLM(config)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 32, (48, 8))]
settings = TrainingArguments(
    "out",
    num_train_epochs=3,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    lr_scheduler_type="cosine",
    warmup_steps=3,
    logging_steps=4,
    eval_strategy="steps",
    eval_steps=3,
    save_steps=6,
    save_total_limit=2,
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    include_num_input_tokens_seen="all",
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(
    model,
    settings,
    train_dataset=rows,
    eval_dataset=rows[:16],
    callbacks=[EarlyStoppingCallback(early_stopping_patience=50)],
    compute_metrics=lambda found: {"mean": float(found.predictions.mean()) + random.random()},
)
loss = trainer.train().training_loss
timed = ("runtime", "second")
history = [{key: each[key] for key in each if not key.endswith(timed)} for each in trainer.state.log_history]
best = (trainer.state.best_metric, trainer.state.total_flos, trainer.state.num_input_tokens_seen)
torch.save({"history": history, "loss": loss, "best": best, "model": model.state_dict()}, sys.argv[1])
