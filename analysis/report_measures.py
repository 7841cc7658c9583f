"""How the page's numbers are obtained, in short; docs/measures.md has it in full."""

MEASURES = (
    (
        "Step time and throughput",
        "From an untraced pass: device events on GPUs, the wall clock on CPUs; the throughput from one block of steps "
        "between two synchronisations. Medians over all repeats; every 95% interval stands on how far repeats lie apart, "
        "a cell's own and, where those are few, also the other cells'. Below five steps, or where every cell has one repeat "
        "alone, no interval is given and nothing is compared.",
    ),
    (
        "Compute, communication, exposed, hidden, idle",
        "From torch.profiler's traces of other steps. K is the union of compute kernels, C that of communication "
        "kernels and copies between devices, per device and step window. Communication is |C|, hidden |C ∩ K|, "
        "exposed |C \\ K|, compute |K|, idle what is in neither. Step = compute + exposed + idle. On a CPU K is the "
        "operators of all threads and C gloo's ranges; they share the cores, so hidden there means concurrent.",
    ),
    (
        "Transfer and wait",
        "The same collective is found on every rank by its sequence number or order. Transfer is the shortest of its "
        "durations, for the last rank to come waits for nobody; wait is what a rank's duration has above that. "
        "Broadcasts and reduces make nobody wait for everybody and have neither.",
    ),
    (
        "algbw and busbw",
        "Bytes over transfer, and that times 2(N−1)/N for an all-reduce, (N−1)/N for all-gather, reduce-scatter and "
        "all-to-all, 1 for the others: nccl-tests' definitions. GB/s is 1e9 bytes per second.",
    ),
    (
        "DataParallel's phases",
        "A device event belongs to the phase in which it was launched. The parts of the waterfall are each phase's "
        "communication that nothing hides, without what an earlier phase covers, so that they add up.",
    ),
    (
        "Subtraction estimates",
        "t_N(b) − t_1(b), t_N(G/N) − t_1(G)/N and t_N(G/N) − t_1(G), with b the batch per device and G = N b. They "
        "hold what compute and idle changed, miss what overlap hides, and can be negative. They are shown to be "
        "compared, not to be believed.",
    ),
    (
        "Predictions",
        "From a calibration of this machine where there is one (alpha + S/B per collective, fitted), else by the ring "
        "without latency at the link's specification, a lower bound. From the run they take sizes, and for exposed "
        "communication the times at which buckets were ready.",
    ),
    (
        "The timeline",
        "The middle one of the whole traced steps of the first repeat. Ranks of one host share its clock; others are "
        "set by the ends of collectives that all of them finish together, and what these ends depart from one another "
        "is stated.",
    ),
    (
        "NA",
        "Not measured or not applicable, never 0. The reason stands below the table and in comparison.csv.",
    ),
)
