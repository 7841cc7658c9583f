"""A training of a tiny GPT-2 with the Trainer of Hugging Face; started by torchrun or alone."""

import os
import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

STEPS, BATCH, TOKENS = 40, 4, 16


class Sequences(Dataset):
    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(64, (count, TOKENS))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=TOKENS, n_embd=32, n_layer=2, n_head=2)
    )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    with tempfile.TemporaryDirectory() as folder:
        quiet = {
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
        }
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            use_cpu=True,
            **quiet,
        )
        trainer = Trainer(
            model=model, args=arguments, train_dataset=Sequences(STEPS * BATCH * processes)
        )
        trainer.train()
    sys.stdout.write(f"rank {os.environ.get('RANK', '0')} trained\n")


if __name__ == "__main__":
    main()
