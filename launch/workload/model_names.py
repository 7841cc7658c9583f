"""Names of the models that dpscope brings. Imports nothing, so that planning stays free of torch."""

CIFAR_RESNET = "resnet18_cifar"
SMALL_RESNET = "resnet8_cifar"
GPTS = ("gpt_5m", "gpt_30m", "gpt_124m")
OWN_MODELS = (CIFAR_RESNET, SMALL_RESNET, *GPTS)  # the names that need no torch to be known
