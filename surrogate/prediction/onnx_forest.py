"""A `Forest` as an ONNX graph, run by ONNX Runtime: the fast way for a few rows, used only where it agrees.

The graph is made when a bundle is loaded, in tenths of a second: stored beside the booster it would double the bundle,
and it would have to be checked against the booster all the same.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.prediction.forest import Forest

ML_OPSET = 3
_SCORE = ["score"]
MAX_LOG_DIFFERENCE = 2e-5
"""Largest difference to XGBoost in log time that passes: both add hundreds of float32 leaves, in different orders."""


@dataclass(frozen=True, slots=True)
class OnnxForest:
    """ONNX Runtime with the graph of one `Forest` loaded."""

    runtime: Any
    forest: Forest

    @classmethod
    def of(cls, forest: Forest) -> "OnnxForest":
        """Raises `ImportError` where onnx or onnxruntime is missing."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        runtime = onnxruntime.InferenceSession(to_onnx(forest), options, providers=["CPUExecutionProvider"])
        return cls(runtime, forest)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """As `Forest.predict`, within `MAX_LOG_DIFFERENCE`."""
        return self.runtime.run(_SCORE, {"x": x})[0][:, 0]


def to_onnx(forest: Forest) -> bytes:
    """The graph: ``x`` (rows, columns) float32 → ``score`` (rows, 1) float32."""
    from onnx import TensorProto, helper

    tree = tree_of_nodes(forest)
    order = np.argsort(tree, kind="stable")  # ONNX Runtime takes a tree's first node for its root
    number = np.arange(len(tree))
    leaf = np.isnan(forest.threshold)

    def column(values: np.ndarray) -> list[Any]:
        return values[order].tolist()

    ends = order[leaf[order]]
    node = helper.make_node(
        "TreeEnsembleRegressor",
        ["x"],
        ["score"],
        domain="ai.onnx.ml",
        n_targets=1,
        base_values=[float(forest.base_score)],
        post_transform="NONE",
        nodes_treeids=column(tree),
        nodes_nodeids=column(number),
        nodes_featureids=column(forest.feature),
        nodes_values=column(np.where(leaf, 0.0, forest.threshold)),
        nodes_modes=column(np.where(leaf, "LEAF", "BRANCH_LT")),
        nodes_truenodeids=column(np.where(leaf, 0, forest.child)),
        nodes_falsenodeids=column(np.where(leaf, 0, forest.child + 1)),
        nodes_missing_value_tracks_true=column(np.where(leaf, 0, forest.missing_left).astype(int)),
        target_treeids=tree[ends].tolist(),
        target_nodeids=number[ends].tolist(),
        target_ids=[0] * len(ends),
        target_weights=forest.leaf[ends].tolist(),
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, [None, 1])
    graph = helper.make_graph([node], "forest", [x], [score])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def tree_of_nodes(forest: Forest) -> np.ndarray:
    """(nodes,) the number of the tree that every node belongs to."""
    inner = np.flatnonzero(~np.isnan(forest.threshold))
    tree = np.full(len(forest.child), -1)
    tree[forest.roots] = np.arange(len(forest.roots))
    for _ in range(forest.depth):
        known = inner[tree[inner] >= 0]
        tree[forest.child[known]] = tree[known]
        tree[forest.child[known] + 1] = tree[known]
    return tree
