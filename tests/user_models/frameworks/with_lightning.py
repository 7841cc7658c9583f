"""A training with Lightning's Trainer, a validation between its epochs; started by torchrun, alone,
or by Lightning (2).
"""

import os
import sys
import tempfile

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 40, 8


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self(inputs), labels)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        inputs, labels = batch
        self.log("loss", nn.functional.cross_entropy(self(inputs), labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    by_lightning = int(sys.argv[1]) if len(sys.argv) > 1 else 0  # processes that Lightning starts
    processes = by_lightning or int(os.environ.get("WORLD_SIZE", "1"))
    lightning.seed_everything(0, verbose=False)
    samples = STEPS // 2 * BATCH * processes
    data = TensorDataset(torch.rand(samples, 16), torch.randint(4, (samples,)))
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    devices, strategy = (
        by_lightning or int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "ddp" if processes > 1 else "auto",
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=strategy,
            max_epochs=2,
            default_root_dir=folder,
            **quiet,
        )
        trainer.fit(
            Classifier(), DataLoader(data, batch_size=BATCH), DataLoader(data, batch_size=BATCH)
        )
    sys.stdout.write(f"rank {trainer.global_rank} trained\n")


if __name__ == "__main__":
    main()
