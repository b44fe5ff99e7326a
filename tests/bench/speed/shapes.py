"""The shapes of real models, of which the benchmark makes checkpoints with random weights."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What config.json says of a model; embeddings are tied to the head."""

    name: str
    model_type: str  # `llama` or `qwen3`; the latter norms queries and keys
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_theta: float
    rms_norm_eps: float
    max_positions: int
    w3_per_second: float  # jobs of W3, about half of what the peers can serve

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrices, each of which a token multiplies once."""
        attention = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim * self.hidden_size
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def kv_values(self) -> int:
        """Numbers that one token has in the KV cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


SMOLLM = Shape(  # HuggingFaceTB/SmolLM2-135M
    name="smollm-135m",
    model_type="llama",
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    rope_theta=100_000.0,
    rms_norm_eps=1e-5,
    max_positions=8192,
    w3_per_second=1.0,
)
QWEN3 = Shape(  # Qwen/Qwen3-0.6B
    name="qwen3-0.6b",
    model_type="qwen3",
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=151936,
    rope_theta=1_000_000.0,
    rms_norm_eps=1e-6,
    max_positions=40960,
    w3_per_second=0.3,
)
SHAPES = {shape.name: shape for shape in (SMOLLM, QWEN3)}
