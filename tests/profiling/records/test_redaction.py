"""Secrets in commands and variables: what is hidden, and what that only looks alike stays."""

import json
from pathlib import Path

import msgspec
import pytest

from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.redaction import (
    command_without_secrets,
    options_of,
    variables_without_secrets,
)
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.paths import EXAMPLE_RUN

SECRETS = ("hunter2", "wXyZ", "ghp_16C7e42F292c6912E7710c838347Ae178B4a")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train.py --api-key=hunter2 --lr 0.1", "train.py --api-key=*** --lr 0.1"),
        ("train.py --wandbToken hunter2 data", "train.py --wandbToken *** data"),
        ("train.py +db.password=hunter2 lr=0.1", "train.py +db.password=*** lr=0.1"),
        ("train.py AWS_SECRET_ACCESS_KEY=hunter2", "train.py AWS_SECRET_ACCESS_KEY=***"),
        ("train.py --passwd 'hunter2 and more' x", "train.py --passwd *** x"),
        ("train.py --credentials -hunter2", "train.py --credentials ***"),
        ("train.py --url=https://me:hunter2@host/p", "train.py --url=https://***@host/p"),
        ("train.py 'https://host/p?a=1&token=hunter2'", "train.py 'https://host/p?a=1&token=***'"),
        (
            "train.py --header 'Authorization: Bearer hunter2'",
            "train.py --header 'Authorization: ***'",
        ),
        (
            """train.py '{"api_key": "hunter2", "lr": 1}'""",
            """train.py '{"api_key": "***", "lr": 1}'""",
        ),
        ("train.py ghp_16C7e42F292c6912E7710c838347Ae178B4a", "train.py ***"),
        ("train.py --x=sk-proj-wXyZ5fG7hI9jK1lM3nO5pQ", "train.py --x=***"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(command: str, shown: str) -> None:
    hidden = command_without_secrets(command)
    assert hidden == shown
    assert not any(secret in hidden for secret in SECRETS)
    assert command_without_secrets(hidden) == hidden
    assert not any(secret in options_of(command) for secret in SECRETS)


@pytest.mark.parametrize(
    "command",
    [
        "train.py --tokenizer gpt2 --max-tokens 2048 --author me --monkey 3",
        "train.py --run 2026-11-29_12-50-58_resnet50_bs256_lr0.1 --data /data/imagenet2012/train_shards",
        "-m package.train.DistributedDataParallelTrainer2 --devices GPU-8a9b1c2d-3e4f-5a6b-7c8d-9e0f1a2b3c4d",
        "train.py --mirror https://host:8080/p@1 --when 12:30",
        "train.py 'an unmatched \"quotation mark' --lr 0.1",
    ],
)
def test_what_is_no_secret_stays_as_it_is(command: str) -> None:
    assert command_without_secrets(command) == command


def test_variables_are_hidden_by_name_and_by_value() -> None:
    variables = {
        "NCCL_AUTH_TOKEN": "hunter2",
        "TORCH_PROXY": "http://me:hunter2@proxy:3128",
        "NCCL_ALGO": "Ring",
        "NCCL_IB_HCA": "mlx5_0,mlx5_1",
    }
    assert variables_without_secrets(variables) == {
        **variables,
        "NCCL_AUTH_TOKEN": "***",
        "TORCH_PROXY": "http://***@proxy:3128",
    }


def test_a_manifest_that_an_older_version_stored_shows_no_secret(tmp_path: Path) -> None:
    script = "train.py --api-key hunter2"
    again = AttachCode.JOB_NOT_MEASURED.finding(
        "a job failed", f"fix the cause, then: dpscope attach -- {script}"
    )
    content = json.loads((EXAMPLE_RUN / "manifest.json").read_text())
    content |= {"script": script, "findings": [msgspec.to_builtins(again)]}
    content["environment"]["settings"] = {"GLOO_PASSWORD": "hunter2"}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    manifest = RunFolder(tmp_path).manifest()
    assert b"hunter2" not in msgspec.json.encode(manifest)
    assert (
        manifest.findings[0].next_step
        == "fix the cause, then: dpscope attach -- train.py --api-key ***"
    )


def test_only_names_of_options_are_left_of_a_command() -> None:
    assert (
        options_of("/home/me/train.py --lr=0.1 -v --data /home/me/images -phunter2 x=1")
        == "train.py --lr -v --data -p"
    )
    assert options_of("-m package.train --lr 0.1") == "-m package.train --lr"
