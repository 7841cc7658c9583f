"""LeNet-5 for 32 x 32 images in colour: the model of examples/run_cpu, and how a model of your own
is given to dpscope.
"""

from torch import nn


def lenet5() -> tuple[nn.Module, tuple[int, ...], int]:
    """The model, the shape of a sample and the number of classes: ``dpscope run --model
    lenet:lenet5`` in this folder.

    62,006 parameters. Source: LeCun et al., Proceedings of the IEEE 86(11), 1998, with ReLU and max
    pooling, as usual today.
    """
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip
    return model, (3, 32, 32), 10
