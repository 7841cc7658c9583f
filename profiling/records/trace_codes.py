"""Findings about traces: files, steps, ranks, merging."""

import msgspec

from dpscope.profiling.records.finding import Code, Finding, FindingCode

_RECORD_RANGES = "record an NVTX range around each training step, and name it with --steps-by"


class TraceCode(FindingCode):
    TRACE_TOO_LARGE = Code(
        "error",
        meaning="The file expands beyond the size limit, and the rest of it was not read.",
        action="trace fewer steps, or raise --max-bytes",
    )
    TRACE_CUT_SHORT = Code(
        "warning",
        meaning="The file ends in the middle of its events, as after a killed job, or bytes that "
        "are not gzip follow it; the events before were read. An error if its gzip data are "
        "damaged.",
        action="copy the file again, or trace again, if the missing part matters",
        other_severity="error",
    )
    HEADER_UNREADABLE = Code(
        "warning",
        meaning="The trace's header cannot be read, so its rank and its world size are unknown.",
        action="name the file <node>_<rank>.pt.trace.json.gz to give the rank",
    )
    EVENTS_DAMAGED = Code(
        "warning",
        meaning="Some events are damaged: unreadable as JSON, without a usable time or ending "
        "before they start (left out), without a valid device number (in the rows of device -1), or "
        "in the file twice (counted once).",
        action="the sums include what was read; trace again if the missing events matter",
    )
    NO_KERNELS = Code(
        "error",
        meaning="The trace holds calls of a device's runtime but no kernel, so nothing is known "
        "about the device.",
        action="another profiler may be using CUPTI, or it is not permitted: run `dpscope doctor` "
        "and trace again",
    )
    NO_STEPS = Code(
        "warning",
        meaning="The trace marks no steps, so it is treated as a single step.",
        action="call profiler.step() once per training step to get per-step numbers, or name a "
        "range around each step with --steps-by",
        export_action=_RECORD_RANGES,
    )
    RANKS_ASSUMED = Code(
        "warning",
        meaning="An export of Nsight Systems holds several processes and nothing that names their "
        "ranks, which are numbered in the order of the processes.",
        action="start nsys before NCCL is initialised and export with --include-blobs=true: NCCL "
        "then names the ranks",
    )
    STEPS_BY_RANGE = Code(
        "info",
        meaning="The steps are ranges of this name: they repeat at the top level of a thread and "
        "hold what is launched.",
        action="--steps-by selects other ranges",
    )
    SIZES_NOT_RECORDED = Code(
        "warning",
        meaning="An export of Nsight Systems does not hold what NCCL recorded of its calls, so "
        "sizes, bandwidths and process groups are unknown.",
        action="export the report with --include-blobs=true, which keeps them",
    )
    CUDA_GRAPHS = Code(
        "warning",
        meaning="CUDA graphs were recorded as one row per launch, without their kernels, and count "
        "as compute. An error in a job that communicates, since the graphs may hold collectives: "
        "its communication is missing.",
        action="record with nsys profile --cuda-graph-trace=node",
        other_severity="error",
    )
    EVENTS_OF_NO_STEP = Code(
        "warning",
        meaning="More than 1% of the device's time belongs to events launched outside of the traced "
        "steps: each counts in the step that was running, or in none.",
        action="usual at a trace's edges and for replayed CUDA graphs; if there are many, call "
        "profiler.step() after each training step, and trace more steps after a warm-up",
        export_action="usual at the edges of a capture and for replayed CUDA graphs; if there are many, "
        "record NVTX ranges that hold all that a step launches (--steps-by)",
        of_many_cells=True,
    )
    STEPS_NOT_TIMED = Code(
        "warning",
        meaning="Some steps have no times: they hold no event, may lack some since the file ends "
        "early, or ended before an earlier step's work did. An error if none can be timed.",
        action="trace again with each step's work between two calls of profiler.step(); the file "
        "may have been edited or cut, or a long copy or kernel runs on a separate stream",
        export_action="record NVTX ranges that hold all that a step launches (--steps-by)",
        other_severity="error",
    )
    STEPS_UNEVEN = Code(
        "warning",
        meaning="Some steps hold at least twice as many collectives as the median step, so means "
        "over steps mix two kinds of steps.",
        action="find these steps in the table of steps; trace without evaluation, logging or "
        "checkpoints, or use the median",
    )
    STEPS_FAR_LONGER = Code(
        "warning",
        meaning="A few steps take more than three times as long as the median step: averages are of "
        "the others. The message states which part of such a step is longer.",
        action="look at that step in the trace; trace after a longer warm-up, and without "
        "checkpoints or evaluation",
    )
    DEVICE_NOT_READ = Code(
        "warning",
        meaning="The trace holds events of a device in categories that dpscope does not read. An "
        "error if it reads none of the device's work.",
        action="dpscope reads kernels of CUDA, HIP and XPU and MTIA's ccp events; view the others "
        "in Perfetto",
        other_severity="error",
    )
    COMMUNICATION_UNKNOWN = Code(
        "warning",
        meaning="Kernels of an unknown library have names that suggest communication; they count as "
        "compute.",
        action="if they move data between ranks, add their time to communication, not to compute",
    )
    TRACE_INCOMPLETE = Code(
        "error",
        meaning="The trace does not show the communication that must have taken place, so no "
        "communication time is given; or traces of a repeat are cut short or missing, so it is left "
        "out of traced values.",
        action="measure the cell again; if it recurs, run `dpscope doctor`",
    )
    FILE_NOT_READ = Code(
        "warning",
        meaning="A file among the traces is not a trace, or a copy of another one, and was skipped.",
        action="move other files and copies out of the folder, or name the traces one by one",
    )
    TRACE_OF_ANOTHER_JOB = Code(
        "warning",
        meaning="A trace differs from the others of its job in world size, groups or times, "
        "and was left out.",
        action="analyse that trace separately",
    )
    SEVERAL_JOBS = Code(
        "warning",
        meaning="A folder holds traces of several jobs, or files of the same rank or of none, and "
        "nothing shows which of them belong together. Each is analysed separately.",
        action="put each job's traces into a separate folder; if the files do not record the rank, "
        "name them <node>_<rank>.pt.trace.json.gz",
    )
    RANKS_MISSING = Code(
        "warning",
        meaning="Traces of some of the job's ranks are missing.",
        action="add their traces; if they are lost, trace again",
    )
    STEP_TIMES_APART = Code(
        "error",
        meaning="Step times of ranks of one job differ by more than a factor of 100, which is "
        "impossible for ranks that wait for each other.",
        action="check the units of the named ranks' times (nanoseconds read as microseconds are "
        "1,000x), and trace again",
    )
    COLLECTIVES_UNMATCHED = Code(
        "warning",
        meaning="Some collectives have no counterpart on every rank of their group, so they have no "
        "transfer and no wait.",
        action="read the traces of all ranks for the same steps",
    )
    GROUPS_UNKNOWN = Code(
        "warning",
        meaning="Collectives name no process group and do not visibly end together on all ranks, so "
        "they were not matched.",
        action="trace with a version of torch that records groups (2.2 or later), or read the ranks "
        "of each group separately",
        export_action="export with --include-blobs=true, which keeps what NCCL recorded of its groups, "
        "or read the ranks of each group separately",
    )
    PARALLELISM = Code(
        "info",
        meaning="How the job was parallelised, inferred from event names and launches.",
        action="check it against the script, since it is inferred",
    )
    WAITING_FOR_NODE = Code(
        "info",
        meaning="The ranks of one node of the job arrive last in most steps.",
        action="compare that node with the others: clocks, temperatures, other processes, disk and "
        "data loader",
    )
    LAUNCH_BOUND = Code(
        "warning",
        meaning="The host launches work more slowly than the device runs it: the host determines "
        "the step time, and faster devices or links would not shorten it.",
        action="choose larger batches, or give the host less to launch (torch.compile, CUDA graphs, "
        "fewer small operators)",
        of_many_cells=True,
    )
    DEVICE_IDLE = Code(
        "warning",
        meaning="A device is idle for much of each step: the host had launched nothing, or what it "
        "had launched waited.",
        action="check in the trace what the host does in the gaps: the loader (more workers), many "
        "small kernels (larger batches, torch.compile, CUDA graphs), .item() and other calls that "
        "wait for the device",
        of_many_cells=True,
    )
    CLOCKS_AS_RECORDED = Code(
        "warning",
        meaning="Some ranks share no synchronising collective that was found on all its ranks, so "
        "their clocks could not be aligned.",
        action="harmless on one host, where ranks share the clock; for several hosts, merge the "
        "traces of all ranks, with all-reduces in them",
    )
    COLLECTIVE_NOT_BEGUN = Code(
        "warning",
        meaning="When the records of a job's collectives were written, some ranks waited in calls "
        "that others had never begun, or behind a device that stopped. An error if nothing but unfinished calls is "
        "recorded, as when a watchdog stopped the job.",
        action="look at the named ranks' stacks (py-spy dump) and logs; in a job that was still "
        "running this is normal",
        other_severity="error",
    )


def advised_for_export(finding: Finding) -> Finding:
    """With the next step for an export of Nsight Systems, where the finding brought none itself."""
    declared = TraceCode.__members__.get(finding.code.upper())
    if declared is None or finding.next_step != declared.value.action:
        return finding
    step = declared.value.export_action or finding.next_step
    return msgspec.structs.replace(finding, next_step=step)
