"""Findings about traces: files, steps, ranks, merging."""

from dpscope.profiling.records.finding import FindingCode


class TraceCode(FindingCode):
    TRACE_TOO_LARGE = """error: The file expands beyond the size limit, and the rest of it was not read.
        -> trace fewer steps, or raise --max-bytes"""
    GZIP_DAMAGED = """error: The gzip file is damaged or cut short; what comes before the damage was read.
        -> copy the file again, or trace again, if the missing part matters"""
    GZIP_TRAILING_BYTES = """warning: The gzip file is followed by bytes that are not gzip, which were not read.
        -> copy the file again, or trace again, if the missing part matters"""
    HEADER_UNREADABLE = """warning: The trace's header cannot be read, so its rank and its world size are unknown.
        -> name the file <node>_<rank>.pt.trace.json.gz to give the rank"""
    EVENTS_UNREADABLE = """warning (events_left_out): Some events are not readable JSON and were left out.
        -> the sums include what was read; trace again if the missing events matter"""
    EVENTS_REPAIRED = """warning: Some events contain text that is not strict JSON; their times were read nevertheless.
        -> the sums include what was read; trace again if the missing events matter"""
    TRACE_TRUNCATED = """warning: The file ends in the middle of its events, as after a killed job; the events before the end
        were read.
        -> the sums include what was read; trace again if the missing events matter"""
    EVENTS_WITHOUT_TIME = """warning (events_left_out): Some events have no usable time and were left out.
        -> the sums include what was read; trace again if the missing events matter"""
    DEVICES_UNKNOWN = """warning: Some device events have no valid device number; they are in the rows of device -1.
        -> each device's sums include only events that name it; trace again if the others matter"""
    NEGATIVE_DURATIONS = """warning (events_left_out): Some events end before they start and were left out.
        -> the sums include what was read; trace again if the missing events matter"""
    DUPLICATE_EVENTS = """warning: Some events are in the file twice; each was counted once.
        -> usual for merged traces; otherwise check how the file was made"""
    FUSED_RANKS = """varying: One file holds the traces of several ranks; each was read separately. A warning if the rank
        numbers had to be guessed.
        -> no action needed"""
    FUSED_EVENTS_UNOWNED = """error: In a file of several ranks, device events that cannot be assigned to one rank were left
        out.
        -> read the original file of each rank, or set `args.rank` in each event"""
    NO_EVENTS = """error: The trace holds no event with a duration, so there is nothing to analyse.
        -> trace while steps run; the training may have ended before the profiler's schedule reached its active steps"""
    NO_KERNELS = """error: The trace holds calls of a device's runtime but no kernel, so nothing is known about the device.
        -> another profiler may be using CUPTI, or it is not permitted: run `dpscope doctor` and trace again"""
    NO_STEPS = """warning: The trace marks no steps, so it is treated as a single step.
        -> call profiler.step() once per training step to get per-step numbers"""
    EVENTS_OF_NO_STEP = """warning: More than 1% of the device's time belongs to events launched outside of the traced steps:
        they count in the step during which they ran, or in none.
        -> usual at a trace's edges and for replayed CUDA graphs; if there are many, trace more steps after a warm-up"""
    STEPS_EMPTY = """varying: Some steps hold no event, or may lack some of theirs since the file ends early, so their times are
        not given. An error if none can be timed.
        -> trace again with each step's work between two calls of profiler.step(); the file may have been edited or cut"""
    STEPS_UNEVEN = """warning: Some steps hold at least twice as many collectives as the median step, so means over steps mix
        two kinds of steps.
        -> find these steps in the table of steps; trace without evaluation, logging or checkpoints, or use the median"""
    STEPS_FAR_LONGER = """warning: A few steps take more than three times as long as the median step: averages are of the
        others. The message states which part of such a step is longer.
        -> look at that step in the trace; trace after a longer warm-up, and without checkpoints or evaluation"""
    STEPS_OUTLASTED = """warning: A copy or kernel outlasts a later step: such a copy does not end a step, and steps inside such
        a kernel have no times.
        -> look for long copies or kernels on a separate stream, such as a checkpoint's; no action needed if intended"""
    DEVICE_NOT_READ = """varying: The trace holds events of a device in categories that dpscope does not read. An error if it
        reads none of the device's work.
        -> dpscope reads kernels of CUDA, HIP and XPU and MTIA's ccp events; view the others in Perfetto"""
    COMMUNICATION_UNKNOWN = """warning: Kernels of an unknown library have names that suggest communication; they count as
        compute.
        -> if they move data between ranks, move their time from compute to communication"""
    TRACE_INCOMPLETE = """error: The trace does not show the communication that must have taken place, so no communication time
        is given.
        -> measure the cell again; if it recurs, run `dpscope doctor`"""
    FILE_NOT_READ = """warning: A file among the traces is not a trace and was skipped.
        -> move other files out of the folder, or name the traces one by one"""
    TRACE_COPIED = """warning: A file holds the same events of the same rank as another file; the trace is counted once.
        -> remove the copy"""
    TRACE_OF_ANOTHER_JOB = """warning: A trace differs from the others of its job in world size or times, and
        was left out.
        -> analyse that trace separately"""
    SEVERAL_JOBS = """warning: A folder holds traces of several jobs; each job is analysed separately.
        -> put each job's traces into a separate folder, or name the files of one job"""
    RANKS_NOT_UNIQUE = """warning: Several files record the same rank or none, and nothing shows which of them belong to one
        job; each is analysed separately.
        -> put each job's traces into a separate folder; if the files do not record the rank, name them
        <node>_<rank>.pt.trace.json.gz"""
    RANKS_MISSING = """warning: Traces of some of the job's ranks are missing.
        -> add their traces; if they are lost, trace again"""
    STEP_TIMES_APART = """error: Step times of ranks of one job differ by more than a factor of 100, which is impossible for
        ranks that wait for each other.
        -> check the units of the named ranks' times (nanoseconds read as microseconds are 1,000x), and trace again"""
    COLLECTIVES_UNMATCHED = """warning: Some collectives have no counterpart on every rank of their group, so they have no
        transfer and no wait.
        -> read the traces of all ranks for the same steps"""
    GROUPS_UNKNOWN = """warning: Collectives name no process group and do not visibly end together on all ranks, so they were
        not matched.
        -> trace with a version of torch that records groups (2.2 or later), or read the ranks of each group separately"""
    PARALLELISM = """info: How the job was parallelised, inferred from event names and launches.
        -> this is inferred and may be wrong"""
    WAITING_FOR_NODE = """info: The ranks of one node of the job arrive last in most steps.
        -> compare that node with the others: clocks, temperatures, other processes, disk and data loader"""
    LAUNCH_BOUND = """warning (of_many_cells): The host launches work more slowly than the device runs it: the host determines
        the step time, and faster devices or links would not shorten it.
        -> choose larger batches (--batch-size), or give the host less to launch (torch.compile, CUDA graphs, fewer small
        operators)"""
    DEVICE_IDLE = """warning (of_many_cells): A device is idle for much of each step: the host had launched nothing, or what it
        had launched waited.
        -> check in the trace what the host does in the gaps: the loader (more workers), many small kernels (larger batches,
        torch.compile, CUDA graphs), .item() and other calls that wait for the device"""
    EVENTS_LEFT_OUT = """warning: Some events are unreadable or have invalid times and are not in the merged trace.
        -> trace again if they matter"""
    CLOCKS_AS_RECORDED = """warning: Some ranks share no synchronising collective that was found on all its ranks, so their clocks
        could not be aligned.
        -> harmless on one host, where ranks share the clock; for several hosts, merge the traces of all ranks, with
        all-reduces in them"""
