"""A GAN as its example trains it: a generator and a discriminator, each with its optimizer, each in DDP."""

import argparse
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

NOISE = 16


class Generator(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NOISE, width), nn.ReLU(), nn.Linear(width, 64), nn.Tanh()
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.layers(noise)


class Discriminator(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images).squeeze(1)


def toggle(trained: nn.Module, other: nn.Module) -> None:
    trained.requires_grad_(True)
    other.requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument(
        "--toggle",
        action="store_true",
        help="gradients of the model that is not trained, as Lightning does",
    )
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        distributed.init_process_group("gloo")
    torch.manual_seed(0)
    generator, discriminator = Generator(args.width), Discriminator(args.width)
    if several:
        generator, discriminator = (
            DistributedDataParallel(generator),
            DistributedDataParallel(discriminator),
        )
    loss_of = nn.BCEWithLogitsLoss()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(
        discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)
    )
    real, fake = torch.ones(args.batch_size), torch.zeros(args.batch_size)
    for step in range(args.steps):
        images = torch.rand(args.batch_size, 64)
        # The discriminator: real images and made ones.
        if args.toggle:
            toggle(discriminator, generator)
        discriminator_optimizer.zero_grad()
        made = generator(torch.randn(args.batch_size, NOISE))
        both = discriminator(torch.cat((images, made.detach())))
        discriminator_loss = loss_of(both, torch.cat((real, fake)))
        discriminator_loss.backward()
        discriminator_optimizer.step()
        # The generator: made ones that pass for real.
        generator_optimizer.zero_grad()
        if args.toggle:
            toggle(generator, discriminator)
            made = generator(torch.randn(args.batch_size, NOISE))
        generator_loss = loss_of(discriminator(made), real)
        generator_loss.backward()
        generator_optimizer.step()
        if step % 20 == 0 and int(os.environ.get("RANK", "0")) == 0:
            print(
                f"step {step}: D {discriminator_loss.item():.3f}, G {generator_loss.item():.3f}",
                flush=True,
            )
    if several:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
