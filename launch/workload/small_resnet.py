"""ResNet-8 for 32 x 32 pixels: small enough to learn digits in seconds on one core."""

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    """Two 3x3 convolutions with batch norm beside a shortcut, a 1x1 convolution where shapes differ."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(images))


class SmallResNet(nn.Module):
    """Three blocks of 16, 32 and 64 channels at 16, 8 and 4 pixels, 10 classes; 78,042 parameters, 3.1 million
    multiply-adds an image.

    K. He et al., Deep Residual Learning (arXiv:1512.03385), section 4.2, with n = 1, a stem of stride 2 and, for
    shortcuts, their option B.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(_Block(16, 16, 1), _Block(16, 32, 2), _Block(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N x 10) of images (N x 3 x 32 x 32)."""
        features = self.blocks(torch.relu(self.bn(self.stem(images))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits
