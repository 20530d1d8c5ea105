"""A tiny language model of transformers with random weights, in its Trainer with evaluation and saving."""

import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

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


calls = {"step": 0, "substep": 0, "log": 0}


class Counting(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        calls["step"] += 1

    def on_substep_end(self, *args, **kwargs):
        calls["substep"] += 1

    def on_log(self, *args, **kwargs):
        calls["log"] += 1


settings = TrainingArguments(
    "out",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    logging_steps=4,
    eval_strategy="epoch",
    save_strategy="epoch",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model, settings, train_dataset=rows, eval_dataset=rows[:16], callbacks=[Counting()])
trainer.train()
timed = ("runtime", "second")
history = [{key: each[key] for key in each if not key.endswith(timed)} for each in trainer.state.log_history]
print(json.dumps(history), calls, trainer.args.gradient_accumulation_steps)
torch.save(model.state_dict(), sys.argv[1])
