"""What the figures mean: the definitions every report carries."""

DEFINITIONS = (
    (
        "Problem",
        "One convolution on one GPU: sizes with batch, direction, element type, math and layout. It"
        " is judged if at least two algorithms were measured and, in a full table, none is unmeasured."
        " Its shape is all of it but the batch.",
    ),
    (
        "Slowdown",
        "Measured time of the algorithm a model picks, divided by the measured time of the fastest"
        " one. 1.000 is perfect. No predicted time enters.",
    ),
    (
        "slowdown (macro)",
        "Geometric mean over the problems of each shape, then over shapes, so that a shape measured"
        " at many batch sizes counts once. The primary figure, on ungrouped problems.",
    ),
    (
        "pooled",
        "Geometric mean over all problems, each counting once.",
    ),
    (
        "95 % interval",
        "Bootstrap over shapes: 2.5th and 97.5th percentile of the figure over resampled shapes.",
    ),
    (
        "p95, max",
        "95th percentile and largest slowdown of single problems.",
    ),
    (
        "≤10 %",
        "Percent of problems whose pick is at most 10 % slower than the best.",
    ),
    (
        "best %",
        "Percent of problems whose pick is the fastest algorithm itself.",
    ),
    (
        "top-2",
        "Slowdown if the two best-ranked algorithms were both measured and the faster one kept.",
    ),
    (
        "infeasible",
        "Picks that the library does not support or that were not measured; each is charged as the"
        " slowest algorithm that was.",
    ),
    (
        "change %",
        "Paired: mean over shapes of the log ratio of the model's time to that of cuDNN's own pick,"
        " on the same problems, shown as a change in percent. Below zero the model is faster; an"
        " interval across zero shows no difference.",
    ),
    (
        "Stratum",
        "Problems alike: 1×1 filters at stride 1 and 2 (1x1s1, 1x1s2), 3×3 at stride 1 (3x3s1), other"
        " ungrouped ones (other), and grouped ones with depthwise among them (grouped). ungrouped is"
        " all but the last.",
    ),
    (
        "Population",
        "Rows over which time errors are taken: all of them; those within twice the time of their"
        " problem's best, which decide a pick; and the best ones only.",
    ),
    (
        "Time errors",
        "Of |predicted / measured − 1|: median, mean, 90th percentile, root mean square (RMSPE) and"
        " geometric mean (GMAE). Spearman is the rank correlation of the times.",
    ),
    (
        "Split",
        "How held-out rows were chosen. shape: no shape is in both parts, whatever its batch;"
        " network: all shapes of the held-out networks leave training; gpu: so do all rows of the"
        " held-out GPU; random: single rows, shown only for how it flatters.",
    ),
    (
        "References",
        "oracle knows all measured times. cudnn-heuristic is the library's own pick."
        " always-best-single takes the one algorithm that is best on the training part. They stand below the"
        " rule in each table.",
    ),
)
"""Term and definition, in the order of the page."""

CAPTIONS = {
    "slowdowns": "How much the picks cost, problem by problem: the share of problems whose pick is more than"
    " x slower than the best. Lower is better; a curve ends where no slower pick is left.",
    "gpus": "Slowdown (macro) on each GPU, with 95 % intervals where they were computed. Further left is better.",
    "predicted": "Predicted against measured time of held-out rows, {model}, by algorithm family. On the line"
    " the prediction is exact; the grey band is ±10 %. A panel draws at most {points} points,"
    " spread evenly over the times, those far off on its frame; its figures are of all rows.",
    "buckets": "Error of the predicted time by how long the row takes: median above, 90th percentile below.",
}
"""Figure name → caption; the names are also the files' names under figures/."""
