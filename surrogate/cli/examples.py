"""Examples that each command's help ends with; a test parses every one of them."""

EXAMPLES = {
    "seer collect": (
        "seer collect --device cudnn --sample 5000 --minutes 8 -o run.jsonl",
        "seer collect --device cpu --plan problems.txt -o run.jsonl",
        "seer collect --heuristic-only --gpu h200 --networks -o picks.jsonl",
    ),
    "seer import": (
        "seer import miopen gfx90a.fdb.txt.bz2 -o mi210.parquet",
        "seer import nvprof --how",
    ),
    "seer data": ("seer data check run.parquet",),
    "seer data check": ("seer data check a.parquet b.parquet --json",),
    "seer data info": ("seer data info run.parquet",),
    "seer data columns": ("seer data columns --table kernels",),
    "seer data merge": (
        "seer data merge run.jsonl -o run.parquet",
        "seer data merge a.parquet b.parquet -o both.parquet",
    ),
    "seer compare": (
        "seer compare",
        "seer compare run.parquet --models boosted-terms,roofline --by gpu -o out",
        "seer compare all.parquet --where dtype=fp32 --where direction=fwd",
    ),
    "seer report": ("seer report out",),
    "seer train": (
        "seer train run.parquet -o bundle",
        "seer train run.parquet --params best.json --where dtype=fp32 -o bundle",
    ),
    "seer tune": (
        "seer tune run.parquet --trials 50 -o best.json",
        "seer tune run.parquet --storage sqlite:///study.db --trials 50",
    ),
    "seer evaluate": ("seer evaluate bundle run.parquet --where gpu=v100-sxm2-16gb",),
    "seer calibrate": (
        'seer calibrate bundle --plan 30 --gpu "RTX 4090" -o plan.jsonl',
        "seer collect --device cudnn --plan plan.jsonl -o run.jsonl",
        "seer data merge run.jsonl -o run.parquet",
        "seer calibrate bundle run.parquet -o calibrated",
    ),
    "seer predict": (
        "seer predict --gpu v100 n32c256h14k256r3p1",
        "seer predict --gpu t4 --data table.parquet -o predicted.parquet",
    ),
    "seer select": (
        "seer select --gpu v100 --workspace-limit 64MiB n32c256h14w14k256r3s3p1",
        "seer select --gpu t4 -- -n 32 -c 256 -H 14 -W 14 -k 256 -y 3 -x 3 -p 1 -q 1",
    ),
    "seer export": ("seer export bundle --problems problems.txt --as c-header -o picks.h",),
    "seer network": (
        "seer network resnet50.onnx --gpu t4 --batch 8 --by-type",
        "seer network my_module:my_callable --gpu v100 --training",
        "seer network net.onnx --gpu t4 --batch 8 --compare-gpus v100,h100-sxm",
    ),
    "seer info": ("seer info bundle",),
    "seer trace": ("seer trace summary trace.json.gz",),
    "seer trace summary": (
        "seer trace summary trace.json.gz --html profile.html",
        "seer trace summary b8.json b16.json b32.json",
    ),
    "seer trace kernels": ("seer trace kernels trace.json.gz --by layer --top 20",),
    "seer trace spans": ("seer trace spans trace.json.gz --level kernel --iteration 1",),
    "seer trace simulate": ("seer trace simulate trace.json.gz --json",),
    "seer trace whatif": (
        "seer trace whatif trace.json.gz amp fused-adam cuda-graphs",
        "seer trace whatif trace.json.gz gpu --gpu h100-sxm --timeline h100.json",
    ),
    "seer trace iteration": (
        "seer trace iteration trace.json.gz --leave-one-out",
        "seer trace iteration trace.json.gz --gpu a100-sxm4-40gb",
    ),
    "seer gpus": ("seer gpus", "seer gpus v100 --json"),
}
"""A command's words → command lines, none wider than a terminal of 80 columns."""
