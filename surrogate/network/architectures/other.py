"""Networks that are not about images: a recommendation model and a small transformer encoder."""

from surrogate.network.architectures.builder import Builder, Value

DLRM_TABLES, DLRM_ROWS, DLRM_DIM, DLRM_BAG = 8, 100_000, 64, 32
SEQUENCE, WIDTH, HEADS, BLOCKS, VOCABULARY = 128, 512, 8, 6, 32_000


def _mlp(b: Builder, x: Value, widths: tuple[int, ...], last: str = "relu") -> Value:
    for place, width in enumerate(widths):
        x = b.activate(last if place == len(widths) - 1 else "relu", b.linear(x, width))
    return x


def dlrm(b: Builder, n: int) -> Value:
    """Naumov et al. (2019): dense features through an MLP, bags of embeddings, pairwise products, an MLP on top."""
    dense = _mlp(b, b.image("dense", (n, 13)), (512, 256, DLRM_DIM))
    parts = [b.reshape(dense, (n, 1, DLRM_DIM))]
    for table in range(DLRM_TABLES):
        bag = b.lookup(b.indices(f"table{table}", (n, DLRM_BAG)), DLRM_ROWS, DLRM_DIM, summed=True)
        parts.append(b.reshape(bag, (n, 1, DLRM_DIM)))
    rows = b.concat(parts)
    products = b.matmul(rows, b.transpose(rows, (0, 2, 1)))
    return _mlp(b, b.concat([dense, b.flatten(products)]), (512, 256, 1), last="sigmoid")


def transformer(b: Builder, n: int) -> Value:
    """Vaswani et al. (2017), section 3: six encoder blocks of width 512 with 8 heads, on 128 tokens."""
    x = b.lookup(b.indices("tokens", (n, SEQUENCE)), VOCABULARY, WIDTH)
    for _ in range(BLOCKS):
        x = b.layer_norm(b.add(x, _attention(b, x, n)))
        x = b.layer_norm(b.add(x, b.linear(b.activate("gelu", b.linear(x, 4 * WIDTH)), WIDTH)))
    return x


def _attention(b: Builder, x: Value, n: int) -> Value:
    """Multi-head self-attention without a mask."""
    head = WIDTH // HEADS

    def heads(order: tuple[int, ...]) -> Value:
        return b.transpose(b.reshape(b.linear(x, WIDTH), (n, SEQUENCE, HEADS, head)), order)

    query, key, value = heads((0, 2, 1, 3)), heads((0, 2, 3, 1)), heads((0, 2, 1, 3))
    weights = b.activate("softmax", b.scale(b.matmul(query, key), head**-0.5))
    mixed = b.transpose(b.matmul(weights, value), (0, 2, 1, 3))
    return b.linear(b.reshape(mixed, (n, SEQUENCE, WIDTH)), WIDTH)
