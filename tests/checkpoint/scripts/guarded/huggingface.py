"""Hugging Face's Trainer."""

import os
import socket
import sys
import tempfile

import torch
import transformers


class WaitingAtTheGate(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **given):
        path = os.environ.get("GUARDED_GATE")
        if state.global_step == 3 and path and os.path.exists(path):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gate:
                gate.connect(path)
                gate.recv(1)


torch.manual_seed(0)
config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2)
model = transformers.GPT2LMHeadModel(config)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (24, 8))]
with tempfile.TemporaryDirectory() as folder:
    options = transformers.TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        ddp_find_unused_parameters=False,
    )
    waits = [WaitingAtTheGate()]
    trainer = transformers.Trainer(model=model, args=options, train_dataset=rows, callbacks=waits)
    trainer.remove_callback(transformers.PrinterCallback)  # It tells how long it took.
    trainer.train()
torch.save(model.state_dict(), sys.argv[1])
