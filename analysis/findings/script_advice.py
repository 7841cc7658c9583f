"""Advice for scripts that dpscope only attaches to, in terms of torch's arguments instead of dpscope's options."""

_ARGUMENTS = (
    ("--bucket-mb ", "DDP's bucket_cap_mb="),
    ("--bucket-mb", "DDP's bucket_cap_mb"),
    ("--broadcast-buffers off", "DDP's broadcast_buffers=False"),
    ("--gradient-as-bucket-view", "DDP's gradient_as_bucket_view"),
    ("--static-graph", "DDP's static_graph"),
    ("--strategy fsdp-no-reshard", "reshard_after_forward=False"),
    ("--nccl-engine default,legacy", "and without TORCH_DIST_USE_NCCL2=0"),
)


def in_a_script(advice: str) -> str:
    """Replace dpscope's options in advice with torch's arguments.

    >>> in_a_script("smaller buckets let part of it be reduced earlier (--bucket-mb 9.5)")
    "smaller buckets let part of it be reduced earlier (DDP's bucket_cap_mb=9.5)"
    """
    for option, argument in _ARGUMENTS:
        advice = advice.replace(option, argument)
    return advice
