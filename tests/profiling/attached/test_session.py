"""Measurements of unchanged scripts of one process: steps, batches, and interruptions."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.report.comparison_tables import step_table
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.attached.signals import EndingSignals
from dpscope.profiling.attached.watch import Active, watch_steps
from dpscope.profiling.store.folders import RunFolder, is_run_folder
from tests.helpers.attached_scripts import (
    TIMED,
    UNTIMED,
    WARMUP,
    WHOLE,
    Net,
    attached,
    counting_backend,
    loss_of,
    measured,
    net_with_sgd,
    timed_steps,
    train,
    train_attached,
    validate,
)
from tests.helpers.known import codes, known


def test_an_unchanged_loop_is_timed_and_traced_and_then_left_alone(tmp_path: Path) -> None:
    notes: list[str] = []
    model = Net()
    with attached(tmp_path, notes) as session:
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, WHOLE - 1)
        assert not session.saved
        train(model, optimizer, 1)
        # at the end of the last timed step, in case the script is killed later
        assert session.saved
        assert "__call__" not in vars(Net)
        train(model, optimizer, 3)
    cell, repeat, rank, samples = measured(tmp_path)
    assert cell.name == "single-d1-b8"
    assert list(samples["measuring_pass"]) == ["timed"] * TIMED + ["traced"] * 2
    assert list(samples["samples"]) == [8] * (TIMED + 2)
    assert rank.blocks[0].samples == 8 * TIMED
    assert (
        rank.blocks[0].duration_s * 1e6
        >= samples[samples["measuring_pass"] == "timed"]["step_us"].sum() * 0.999
    )
    assert samples["data_wait_us"].isna().all()  # not measured: NA, not 0
    # 3 x 2 weights, 2 biases, 4 bytes each
    assert (rank.model.parameter_count, rank.model.gradient_bytes) == (8, 32)
    assert len(repeat.traces()) == 1
    assert codes(rank) == {"batch_as_seen"}
    manifest = RunFolder(tmp_path).manifest()
    assert (manifest.script, manifest.config.workload.model) == ("train.py", "Net")
    assert notes == []


def test_a_second_job_is_the_next_repeat_and_another_batch_another_cell(tmp_path: Path) -> None:
    for samples in (8, 8, 2):
        train_attached(tmp_path, samples=samples)
    run = RunFolder(tmp_path)
    repeats = {one.cell.name: len(run.done_repeats(one.cell)) for one in run.manifest().plan}
    assert repeats == {"single-d1-b2": 1, "single-d1-b8": 2}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_processes_outside_a_group_are_not_measured_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    notes: list[str] = []
    train_attached(tmp_path / "run", notes)
    assert not (tmp_path / "run").exists()
    expected = "nothing is measured: 2 processes run the script and it joined no process group"
    assert [note.startswith(expected) for note in notes] == [True] * (rank == "0")


def test_data_parallel_without_gpus_is_a_single_device(tmp_path: Path) -> None:
    with attached(tmp_path, []):
        model = nn.DataParallel(Net())
        train(model, torch.optim.SGD(model.parameters()), WHOLE)
    assert measured(tmp_path)[0].name == "single-d1-b8"


def test_micro_batches_are_counted_by_backward_passes(tmp_path: Path) -> None:
    """Two calls of the model on each sample are one."""
    train_attached(tmp_path / "four", micro_batches=4)
    with attached(tmp_path / "one", []):
        model, optimizer = net_with_sgd()
        for _ in range(WHOLE):
            (loss_of(model, 8) + loss_of(model, 8)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    for name, micro_batches in (("four", 4), ("one", 1)):
        cell, _, rank, _ = measured(tmp_path / name)
        assert (cell.batch_size, cell.options.accumulate) == (8, micro_batches)
        assert rank.blocks[0].samples == 8 * TIMED


@pytest.mark.parametrize("toggled", [False, True])
def test_steps_of_two_optimizers_end_with_the_first(tmp_path: Path, toggled: bool) -> None:
    """A GAN; as in Lightning, the other model may require no gradient while one steps."""
    generator, discriminator = Net(), nn.Linear(2, 1)
    frozen = generator.layer.bias.requires_grad_(False)
    with attached(tmp_path, []):
        optimizers = {
            model: torch.optim.SGD(model.parameters()) for model in (discriminator, generator)
        }
        for _ in range(WHOLE):
            for trained, optimizer in optimizers.items():
                for model in optimizers if toggled else ():
                    for parameter in model.parameters():
                        parameter.requires_grad_(model is trained and parameter is not frozen)
                if trained is discriminator:
                    discriminator(torch.ones(5, 2)).sum().backward()
                made = generator(torch.ones(5, 3))
                discriminator(made.detach() if trained is discriminator else made).sum().backward()
                optimizer.step()
    cell, _, rank, samples = measured(tmp_path)
    assert (cell.batch_size, cell.options.accumulate, len(timed_steps(samples))) == (5, 1, TIMED)
    # of both models
    assert (rank.model.parameter_count, rank.model.gradient_bytes) == (8 + 3, 4 * (6 + 3))


def test_an_optimizer_that_is_made_anew_within_the_windows_ends_no_step_and_is_not_kept(
    tmp_path: Path,
) -> None:
    """As in meta-learning; kept, it would add its parameters to the memory of the steps."""
    with attached(tmp_path, []):
        model, optimizer = net_with_sgd()
        train(model, optimizer, WARMUP, micro_batches=2)
        for _ in range(WHOLE - WARMUP):
            train(model, optimizer, 1, micro_batches=2)
            head = nn.Linear(3, 1)
            train(head, torch.optim.Adam(head.parameters()), 1, samples=2)
            parameter = weakref.ref(head.weight)
            del head
            gc.collect()
            assert parameter() is None
    cell, _, rank, samples = measured(tmp_path)
    assert (cell.batch_size, cell.options.accumulate, len(timed_steps(samples))) == (8, 2, TIMED)
    assert rank.model.parameter_count == 8


VALIDATION = 0
IN_EACH = [VALIDATION, 8] * WHOLE  # such as a policy's episode before it is trained
IN_TRACE = [*([8] * (WARMUP + 3)), VALIDATION, *([8] * (UNTIMED - WARMUP - 3))]
BATCHES: list[tuple[list[int], int, list[int], str]] = [
    ([*IN_TRACE, 8, 8, VALIDATION, 8, 8], 8, [0, 1, 3], ""),
    (IN_EACH, 8, [0, 1, 2, 3], ""),
    ([*([8] * UNTIMED), 8, 8, 3, 8], 8, [0, 1, 3], ""),  # a short last batch
    ([*([8] * UNTIMED), 8, 16, 8, 8], 8, [0, 2, 3], ""),
    ([*([8] * UNTIMED), 8, 7, 6, 3], 6, [0, 1, 2, 3], " (the mean of batches that change)"),
    # The usual batch is that of steps that are kept: three with a validation, and one that is
    # measured, with its batch.
    ([*([8] * UNTIMED), VALIDATION, 8, VALIDATION, 8, 4, 4], 4, [2, 3], ""),
]


@pytest.mark.parametrize(("sizes", "usual", "kept", "mean"), BATCHES)
def test_steps_with_validations_and_unusual_batches_are_left_out(
    tmp_path: Path, sizes: list[int], usual: int, kept: list[int], mean: str
) -> None:
    with attached(tmp_path, []):
        model, optimizer = net_with_sgd()
        for size in sizes:
            train(model, optimizer, 1, size) if size else validate(model)
    cell, _, rank, samples = measured(tmp_path)
    (block,) = rank.blocks
    assert (cell.batch_size, block.steps, block.samples) == (usual, len(kept), usual * len(kept))
    assert timed_steps(samples) == kept
    assert ("steps_left_out" in codes(rank)) == (len(kept) < TIMED)
    assert ("traced_beside_other_work" in codes(rank)) == (
        sizes is BATCHES[0][0] or sizes is IN_EACH
    )
    if len(kept) < TIMED:
        assert block.duration_s == pytest.approx(samples["step_us"][: len(kept)].sum() / 1e6)
    (text,) = (finding.message for finding in rank.findings if finding.code == "batch_as_seen")
    assert text.startswith(f"{usual} samples a step and process{mean}, micro-batches: 1; by")


def test_a_script_that_ends_early_keeps_what_was_timed(tmp_path: Path) -> None:
    notes: list[str] = []
    train_attached(tmp_path, notes, UNTIMED + 2)
    _, repeat, rank, samples = measured(tmp_path)
    assert (len(samples), rank.blocks[0].steps, len(repeat.traces())) == (2 + 2, 2, 1)
    (early,) = (finding for finding in rank.findings if finding.code == "script_ended_early")
    assert early.next_step.startswith(
        "let the script train at least 16 steps (on GPUs 22), or attach with --warmup 2 --traced-steps 1 (13 steps, on GPUs 22)"
    )
    name = known(rank.attached).cell.name  # several cells may have ended early
    assert early.message == f"{name}: the script ended: 2 of 4 steps were timed, 1 traced"
    assert notes == [
        "the script ended: 2 of 4 steps were timed, 1 traced; what was measured is saved"
    ]


@pytest.mark.parametrize(
    ("steps", "how", "message"),
    [
        (
            0,
            "the script ended",
            "no torch optimizer stepped, except within a backward pass; if it trains, take the loop",
        ),
        (
            UNTIMED,
            "the script ended",
            "11 steps of 16 that are needed; let the script train at least 16 steps (on GPUs 22);",
        ),
        (7, "the script raised KeyError", "7 steps of 16 that are needed; see its error"),
        (0, "the script raised KeyError", "no step was trained; see its error"),
    ],
)
def test_a_script_without_a_timed_step_leaves_one_line(
    tmp_path: Path, steps: int, how: str, message: str
) -> None:
    notes: list[str] = []
    with attached(tmp_path / "run", notes) as session:
        train(*net_with_sgd(), steps)
        session.close(how)
    (note,) = notes
    assert note.startswith(f"{how}: nothing was measured: {message}")
    assert not is_run_folder(tmp_path / "run")


def test_a_script_that_profiles_itself_is_only_timed(tmp_path: Path) -> None:
    with attached(tmp_path, []):
        model, optimizer = net_with_sgd()
        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)
        ) as theirs:
            for _ in range(WHOLE):
                train(model, optimizer, 1)
                theirs.step()
    _, repeat, rank, samples = measured(tmp_path)
    assert (len(samples), repeat.traces()) == (TIMED, [])
    assert "script_profiles" in codes(rank)


def test_a_profiler_started_during_the_trace_takes_precedence(tmp_path: Path) -> None:
    with attached(tmp_path, []):
        model, optimizer = net_with_sgd()
        train(model, optimizer, WARMUP + 2)
        with torch.profiler.profile() as theirs:
            train(model, optimizer, 6)
    _, repeat, rank, _ = measured(tmp_path)
    assert repeat.traces() == []
    assert "script_profiles" in codes(rank)
    assert any("SGD" in event.key for event in theirs.key_averages())  # and is complete


def test_a_step_of_one_optimizer_per_parameter_ends_with_the_first(tmp_path: Path) -> None:
    """Thirty optimizers step in turn: more than the steps of another one after which the first
    counts as over.
    """
    notes: list[str] = []
    with attached(tmp_path, notes):
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(15)))
        optimizers = [torch.optim.SGD([parameter]) for parameter in model.parameters()]
        for _ in range(WHOLE):
            loss_of(model, 8).backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
    cell, _, rank, samples = measured(tmp_path)
    assert (cell.name, len(timed_steps(samples)), notes) == ("single-d1-b8", TIMED, [])
    assert rank.model.gradient_bytes == 4 * 15 * (3 * 3 + 3)


@pytest.mark.parametrize(("critic_steps", "longer"), [(3, 3), (10, 1)])
def test_steps_that_do_more_than_the_others_are_a_warning(
    tmp_path: Path, critic_steps: int, longer: int
) -> None:
    """A critic steps in each step, and a generator in every `critic_steps`-th."""
    generator, critic = Net(), nn.Linear(2, 1)
    with attached(tmp_path, [], steps=9):
        optimizers = [torch.optim.SGD(model.parameters()) for model in (critic, generator)]
        for step in range(UNTIMED + 9):
            with torch.no_grad():
                made = generator(torch.ones(6, 3))
            critic(made).sum().backward()
            optimizers[0].step()
            if step % critic_steps == 0:
                critic(generator(torch.ones(6, 3))).sum().backward()
                optimizers[1].step()
    _, _, rank, samples = measured(tmp_path)
    assert len(timed_steps(samples)) == 9
    (message,) = (one.message for one in rank.findings if one.code == "steps_unlike")
    assert (
        message == f"{longer} of 9 timed steps call the models more or less often than the others"
    )


def test_short_accumulations_at_the_end_of_an_epoch_are_left_out(tmp_path: Path) -> None:
    """Ten micro-batches in an epoch are steps of four, four and two."""
    with attached(tmp_path, [], steps=9, warmup_steps=8):
        model, optimizer = net_with_sgd()
        for _ in range(12):
            for micro_batches in (4, 4, 2):
                train(model, optimizer, 1, samples=2 * micro_batches, micro_batches=micro_batches)
    cell, _, rank, samples = measured(tmp_path)
    assert (cell.batch_size, len(timed_steps(samples))) == (8, 6)
    assert codes(rank) == {"batch_as_seen", "steps_left_out"}


def test_optimizers_that_step_within_a_backward_pass_end_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of a parameter as soon as its gradient is there: only the loop ends a step."""
    monkeypatch.setattr(Active, "session", None)
    with attached(tmp_path, [], steps_by="call") as Active.session:
        model = Net()
        optimizers = {parameter: torch.optim.SGD([parameter]) for parameter in model.parameters()}

        def step(parameter: Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            optimizers[parameter].zero_grad()  # type: ignore[index]

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
        for _ in watch_steps(range(WHOLE)):
            loss_of(model, 8).backward()  # type: ignore[no-untyped-call]
    cell, _, rank, samples = measured(tmp_path)
    assert (cell.name, len(timed_steps(samples))) == ("single-d1-b8", TIMED)
    assert rank.model.gradient_bytes == 32


def test_stop_after_ends_the_script_once_it_is_measured(tmp_path: Path) -> None:
    model, optimizer = net_with_sgd()
    with pytest.raises(SystemExit) as ended, attached(tmp_path, [], stop_after=True):
        train(model, optimizer, 1000)
    assert ended.value.code == 0
    assert len(measured(tmp_path)[1].traces()) == 1


def test_watch_steps_measures_a_loop_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Active, "session", None)
    monkeypatch.setattr("sys.argv", [str(tmp_path / "train.py")])  # outside a git checkout
    monkeypatch.setattr("atexit.register", lambda function, *arguments: None)
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    with pytest.raises(ValueError, match="watch_steps needs out"):
        next(watch_steps([1]))
    for wrong in ({"warmup": 1}, {"steps": 0}, {"traced_steps": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=r"steps, traced_steps and batch_size above 0$"):
            next(watch_steps([1], out=tmp_path, **wrong))
    model, optimizer = net_with_sgd()
    loader = DataLoader(TensorDataset(torch.ones(4 * WHOLE, 3)), batch_size=4)
    for epoch in range(2):
        for (inputs,) in watch_steps(
            loader, out=tmp_path, warmup=WARMUP, steps=TIMED, traced_steps=1
        ):
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
            if epoch:
                break
    cell, repeat, _, samples = measured(tmp_path)
    assert cell.name == "single-d1-b4"
    assert (len(samples), len(repeat.traces())) == (TIMED + 2, 1)
    # the tracer prints nothing into the script's output
    assert os.environ["KINETO_LOG_LEVEL"] == "99"
    assert Active.session is not None
    Active.session.close("the script ended")


def test_batch_size_option_and_precision_are_recorded(tmp_path: Path) -> None:
    with attached(tmp_path, [], batch_size=5):
        model, optimizer = net_with_sgd()
        for _ in range(WHOLE):
            with torch.autocast("cpu", torch.bfloat16):
                train(model, optimizer, 1)
    cell, _, rank, _ = measured(tmp_path)
    assert (cell.batch_size, cell.options.amp, rank.blocks[0].samples) == (5, "bf16", 5 * TIMED)
    assert "batch_as_seen" not in codes(rank)


def test_a_model_without_tensor_inputs_has_no_batch_and_a_finding(tmp_path: Path) -> None:
    class Scalar(Net):
        def forward(self, times: int) -> Tensor:  # type: ignore[override]
            return super().forward(torch.ones(3)) * times

    with attached(tmp_path, []):
        model = Scalar()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(WHOLE):
            model(2).sum().backward()
            optimizer.step()
    cell, _, rank, _ = measured(tmp_path)
    assert (cell.batch_size, rank.blocks[0].samples) == (1, TIMED)
    assert "batch_not_seen" in codes(rank)
    comparison = compare(load_run(tmp_path))
    (row,) = comparison.table.to_dict("records")
    assert row["steps_per_s"] == pytest.approx(1e6 / row["step_us"])
    assert pd.isna(row["samples_per_s"])
    assert "steps/s" in known(step_table(comparison)).headings


@pytest.mark.parametrize("failing", ["save_process", "job.finish_job"])
def test_an_error_in_dpscope_ends_the_measurement_but_not_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(f"dpscope.profiling.attached.session.{failing}", lambda *_: 1 / 0)
    train_attached(tmp_path, notes, WHOLE + 2)
    assert len(notes) == 1
    assert "ZeroDivisionError" in notes[0]
    assert notes[0].endswith("the script continues without it")


@pytest.mark.process
def test_a_child_of_the_script_saves_nothing(tmp_path: Path) -> None:
    with attached(tmp_path, []) as session:
        model, optimizer = net_with_sgd()
        train(model, optimizer, UNTIMED + 1)
        if (child := os.fork()) == 0:
            for _ in range(WHOLE):
                session.step_ended()
            session.close("a loader's worker ended")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not (tmp_path / "manifest.json").exists()
    assert measured(tmp_path)[2].blocks[0].steps == 1


@pytest.mark.long
def test_compiled_models_and_optimizers_are_measured_and_stay_in_one_graph(tmp_path: Path) -> None:
    graphs: list[int] = []
    torch._dynamo.reset()
    with attached(tmp_path, []):
        model: Any = torch.compile(Net(), backend=counting_backend(graphs), fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters())
        step = torch.compile(optimizer.step, backend=counting_backend(graphs))
        for _ in range(WHOLE):
            optimizer.zero_grad()
            model(torch.ones(8, 3)).sum().backward()
            step()
    cell, repeat, rank, _ = measured(tmp_path)
    assert (cell.name, rank.model.parameter_count, len(repeat.traces())) == ("single-d1-b8", 8, 1)
    assert len(graphs) <= 3  # the model's and the optimizer's: hooks cause no recompilation
    assert RunFolder(tmp_path).manifest().config.workload.model == "Net"


def test_a_script_may_free_its_model_once_it_is_measured(tmp_path: Path) -> None:
    """Otherwise a sweep over several models would run out of memory only under dpscope."""
    with attached(tmp_path, []) as session:
        model, optimizer = net_with_sgd()
        train(model, optimizer, WHOLE)
        assert session.saved
        gone = weakref.ref(model), weakref.ref(optimizer)
        del model, optimizer
        gc.collect()
        assert [one() for one in gone] == [None, None]


def test_windows_hold_the_steps_of_one_training_alone(tmp_path: Path) -> None:
    """The first training ends within its timed window: the steps of the next one are not timed as
    its steps.
    """
    with attached(tmp_path, [], batch_size=2):
        head, model = nn.Linear(3, 1), Net()
        train(head, torch.optim.SGD(head.parameters()), UNTIMED + 2, samples=2)
        train(model, torch.optim.Adam(model.parameters()), 11 + WHOLE)
    cell, _, rank, _ = measured(tmp_path)
    assert "script_ended_early" in codes(rank)
    assert (cell.name, rank.blocks[0].steps, rank.model.parameter_count) == ("single-d1-b2", 2, 4)


def test_a_script_of_13_steps_is_measured_with_the_suggested_options(tmp_path: Path) -> None:
    notes: list[str] = []
    with attached(tmp_path, notes, warmup_steps=2, traced_steps=1, steps=50):
        train(*net_with_sgd(), 13)
    _, repeat, rank, _ = measured(tmp_path)
    assert (rank.blocks[0].steps, len(repeat.traces())) == (5, 1)


STUCK = """
import ctypes, sys, torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters())
for _ in range({steps}):
    model(torch.ones(8, 3)).sum().backward()
    optimizer.step()
print("trained", flush=True)
mutex = (ctypes.c_char * 64)()
for _ in range(2):  # blocks in C for ever, as in a collective without its peers: Python's handlers do not run
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.process
def test_a_terminated_script_saves_its_timed_steps_and_ends_by_the_signal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STUCK.format(steps=5 + 8 + 7))
    attach = [
        sys.executable,
        "-m",
        "dpscope.launch.attach",
        "--out",
        "run",
        "--warmup",
        "5",
        "train.py",
    ]
    script = subprocess.Popen(
        attach, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "trained\n"
    script.send_signal(signal.SIGTERM)
    _, errors = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGTERM
    assert (
        errors
        == "dpscope: SIGTERM ended the script: 7 of 50 steps were timed, 3 traced; what was measured is saved\n"
    )
    run = RunFolder(tmp_path / "run")
    (planned,) = run.manifest().plan
    ((_, repeat),) = run.done_repeats(planned.cell)
    (rank,) = repeat.ranks()
    assert (rank.blocks[0].steps, planned.cell.name) == (7, "single-d1-b8")
    assert {"script_ended_early", "batch_as_seen"} == {finding.code for finding in rank.findings}
    assert [path.name for path in (tmp_path / "run" / "cells").iterdir()] == ["single-d1-b8"]


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals by which this process would end. All its handlers are restored afterwards."""
    numbers: list[int] = []
    monkeypatch.setattr("dpscope.profiling.attached.signals._end_by", numbers.append)
    before = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGTERM, signal.SIGHUP)}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def await_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "dpscope signals":
            thread.join(5)


def test_signals_with_a_handler_of_the_script_are_left_to_it(killed: list[int]) -> None:
    """The script handles one from the start and one later, and stores and restores handlers as
    libraries do.
    """
    ended: list[str] = []
    theirs: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, frame: theirs.append(number))
    signals = EndingSignals(ended.append)
    os.kill(os.getpid(), signal.SIGHUP)
    stored = signal.signal(signal.SIGTERM, lambda number, frame: theirs.append(number))
    os.kill(os.getpid(), signal.SIGTERM)
    signals.stop()
    await_threads()
    assert (ended, killed, theirs) == ([], [], [signal.SIGHUP, signal.SIGTERM])
    signal.signal(signal.SIGTERM, stored)  # restored after `stop`: it must not swallow the signal
    os.kill(os.getpid(), signal.SIGTERM)
    assert killed == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    EndingSignals(ended.append).stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


def test_a_script_that_handles_both_signals_keeps_no_descriptor_for_them(killed: list[int]) -> None:
    """The number of a closed descriptor is soon that of another file, into which Python would write
    each signal.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    ended: list[str] = []
    EndingSignals(ended.append)
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.process
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_signal_to_a_child_of_the_script_ends_only_the_child(
    killed: list[int], in_thread: bool
) -> None:
    """Forked in the main thread, or in another such as one that starts a loader's workers."""
    ended: list[str] = []
    children: list[int] = []
    signals = EndingSignals(ended.append)
    reading, writing = os.pipe()

    def fork() -> None:
        if (child := os.fork()) == 0:
            os.write(writing, b"1")
            signal.pause()
            os._exit(0)
        children.append(child)

    try:
        if in_thread:
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()
        else:
            fork()
        os.read(reading, 1)
        os.kill(children[0], signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == -signal.SIGTERM
    finally:
        signals.stop()
        await_threads()
    assert (ended, killed) == ([], [])
