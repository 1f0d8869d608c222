"""Small real GGUF files for the tests of the `local` provider, and what their vectors must be."""

import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, PoolingType, TokenType

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@dataclass(frozen=True)
class Bert:
    """A BERT with mean pooling: its GGUF file, and its forward pass in numpy."""

    heads: int
    #: As in BERT's vocab.txt: `##` before a token that continues a word.
    vocab: list[str]
    #: By their names in GGUF, without ".weight" but with ".bias"; matrices are (out, in).
    tensors: dict[str, np.ndarray]

    @property
    def layers(self):
        return sum(name.endswith("attn_q") for name in self.tensors)

    def write(self, path, quantization=GGMLQuantizationType.F32):
        positions, dims = self.tensors["position_embd"].shape
        writer = GGUFWriter(path, "bert")
        writer.add_context_length(positions)
        writer.add_embedding_length(dims)
        writer.add_feed_forward_length(len(self.tensors["blk.0.ffn_up"]))
        writer.add_block_count(self.layers)
        writer.add_head_count(self.heads)
        writer.add_layer_norm_eps(1e-12)
        writer.add_causal_attention(False)
        writer.add_pooling_type(PoolingType.MEAN)
        writer.add_tokenizer_model("bert")
        writer.add_token_type_count(2)
        writer.add_token_list([_phantom_space(token) for token in self.vocab])
        writer.add_token_types(
            [TokenType.CONTROL if token in SPECIALS else TokenType.NORMAL for token in self.vocab]
        )
        for add, token in zip(
            (
                writer.add_pad_token_id,
                writer.add_unk_token_id,
                writer.add_bos_token_id,
                writer.add_sep_token_id,
                writer.add_mask_token_id,
            ),
            SPECIALS,
            strict=True,
        ):
            add(self.vocab.index(token))
        for name, tensor in self.tensors.items():
            keep = tensor.ndim == 1 or name in ("position_embd", "token_types")
            _add_tensor(writer, name, tensor, GGMLQuantizationType.F32 if keep else quantization)
        _finish(writer)

    def tokenize(self, text):
        """Token ids of a text, by the rules of BERT's uncased WordPiece, [CLS] and [SEP] included."""
        ids = {token: number for number, token in enumerate(self.vocab)}
        tokens = ["[CLS]"]
        for word in _words(text):
            pieces, start = [], 0
            while start < len(word):
                for end in range(len(word), start, -1):
                    piece = "##" * (start > 0) + word[start:end]
                    if piece in ids:
                        pieces.append(piece)
                        start = end
                        break
                else:
                    pieces, start = ["[UNK]"], len(word)
            tokens += pieces
        return [ids[token] for token in [*tokens, "[SEP]"]]

    def embed(self, text):
        """The vector of a text, shape (dims,), of unit length."""
        return self.embed_tokens(self.tokenize(text))

    def embed_tokens(self, tokens):
        t = self.tensors
        x = t["token_embd"][tokens] + t["token_types"][0] + t["position_embd"][: len(tokens)]
        x = self._norm(x, "token_embd_norm")
        for layer in range(self.layers):
            name = f"blk.{layer}."
            query, key, value = (
                np.split(self._linear(x, name + part), self.heads, axis=1)
                for part in ("attn_q", "attn_k", "attn_v")
            )
            attended = [
                _softmax(q @ k.T / np.sqrt(q.shape[1])) @ v for q, k, v in zip(query, key, value, strict=True)
            ]
            x = x + self._linear(np.concatenate(attended, axis=1), name + "attn_output")
            x = self._norm(x, name + "attn_output_norm")
            x = x + self._linear(_gelu(self._linear(x, name + "ffn_up")), name + "ffn_down")
            x = self._norm(x, name + "layer_output_norm")
        mean = x.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _linear(self, x, name):
        return x @ self.tensors[name].T + self.tensors[name + ".bias"]

    def _norm(self, x, name):
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-12)
        return x * self.tensors[name] + self.tensors[name + ".bias"]


def tiny_bert(seed=0, dims=32, layers=2, positions=64):
    """A BERT of random weights: 34 kB."""
    words = ["backup", "server", "failed", "the", "cake", "birth", "##day", "##up", "back"]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocab = [*SPECIALS, *words, *letters, *(f"##{letter}" for letter in letters), *".,!?-备份服务器"]
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=0.3):
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    shapes = {"token_embd": (len(vocab), dims), "position_embd": (positions, dims), "token_types": (2, dims)}
    for layer in range(layers):
        name = f"blk.{layer}."
        shapes |= {name + f"attn_{part}": (dims, dims) for part in ("q", "k", "v", "output")}
        shapes |= {name + "ffn_up": (2 * dims, dims), name + "ffn_down": (dims, 2 * dims)}
    tensors = {name: normal(*shape) for name, shape in shapes.items()}
    for name, (rows, _) in shapes.items():
        if name.startswith("blk."):
            tensors[name + ".bias"] = normal(rows)
    norms = ["token_embd_norm"]
    for layer in range(layers):
        norms += [f"blk.{layer}.attn_output_norm", f"blk.{layer}.layer_output_norm"]
    for name in norms:
        tensors[name] = 1 + normal(dims)
        tensors[name + ".bias"] = normal(dims)
    return Bert(4, vocab, tensors)


def minilm(folder):
    """all-MiniLM-L6-v2 from its folder of safetensors, as sentence-transformers publishes it."""
    folder = Path(folder)
    raw = read_safetensors(folder / "model.safetensors")
    layer_names = {
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    }
    names = {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
    }
    for layer in range(6):
        names |= {f"encoder.layer.{layer}.{old}": f"blk.{layer}.{new}" for old, new in layer_names.items()}
    tensors = {}
    for old, new in names.items():
        tensors[new] = raw[old + ".weight"]
        if old + ".bias" in raw:
            tensors[new + ".bias"] = raw[old + ".bias"]
    return Bert(12, (folder / "vocab.txt").read_text(encoding="utf-8").splitlines(), tensors)


def read_safetensors(path):
    """The float32 arrays of a safetensors file, by name."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            array = np.frombuffer(data[start + first : start + last], dtype="<f4")
            arrays[name] = array.reshape(entry["shape"])
    return arrays


def write_tiny_gemma(path, seed=0, pooling=PoolingType.MEAN, dims=768):
    """EmbeddingGemma's architecture in small, with random weights in Q8_0: 1.5 MB.

    With fewer than six layers, all of them would have sliding windows, which llama.cpp refuses.
    """
    layers, head, feed_forward = 6, 32, 32
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    ascii_characters = [chr(code) for code in range(33, 127)]
    tokens = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *ascii_characters]
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, "gemma-embedding")
    writer.add_context_length(2048)
    writer.add_embedding_length(dims)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(256)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0 if token in specials else -float(n) for n, token in enumerate(tokens)])
    writer.add_token_types(
        [TokenType.CONTROL] * 4 + [TokenType.BYTE] * 256 + [TokenType.NORMAL] * (len(tokens) - 260)
    )
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(False)
    shapes = {"token_embd": (len(tokens), dims), "output_norm": (dims,)}
    for layer in range(layers):
        name = f"blk.{layer}."
        shapes |= {name + f"attn_{part}": (head, dims) for part in "qkv"}
        shapes |= {name + "attn_output": (dims, head)}
        shapes |= {name + "ffn_gate": (feed_forward, dims), name + "ffn_up": (feed_forward, dims)}
        shapes |= {name + "ffn_down": (dims, feed_forward)}
        shapes |= {name + f"attn_{part}_norm": (head,) for part in "qk"}
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        shapes |= {name + part: (dims,) for part in norms}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensor, kind = 1 + 0.1 * rng.standard_normal(shape), GGMLQuantizationType.F32
        else:
            tensor, kind = 0.1 * rng.standard_normal(shape), GGMLQuantizationType.Q8_0
        _add_tensor(writer, name, tensor.astype(np.float32), kind)
    _finish(writer)


def write_tiny_chat(path):
    """A chat model in small: Llama's architecture, which has no pooling."""
    dims, head, rng = 32, 8, np.random.default_rng(0)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b"]
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(dims)
    writer.add_block_count(1)
    writer.add_feed_forward_length(dims)
    writer.add_head_count(dims // head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(len(tokens))])
    writer.add_token_types(
        [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 3]
    )
    shapes = {"token_embd": (len(tokens), dims), "output": (len(tokens), dims), "output_norm": (dims,)}
    shapes |= {f"blk.0.attn_{part}": (dims, dims) for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{part}": (dims, dims) for part in ("gate", "up", "down")}
    shapes |= {f"blk.0.{part}_norm": (dims,) for part in ("attn", "ffn")}
    for name, shape in shapes.items():
        tensor = rng.standard_normal(shape).astype(np.float32)
        _add_tensor(writer, name, tensor, GGMLQuantizationType.F32)
    _finish(writer)


def _phantom_space(token):
    """A token of vocab.txt as GGUF has it: marked where it begins a word, not where it doesn't."""
    if token in SPECIALS:
        return token
    return token[2:] if token.startswith("##") and len(token) > 2 else "▁" + token


def _add_tensor(writer, name, tensor, kind):
    name = name if name.endswith(".bias") else name + ".weight"
    writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def _finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _words(text):
    """Lower-case words without accents; each punctuation mark and each CJK character is one."""
    spaced = ""
    for character in unicodedata.normalize("NFD", text.lower()):
        category = unicodedata.category(character)
        if category == "Mn" or (category in ("Cc", "Cf") and not character.isspace()):
            continue
        alone = category.startswith("P") or (character.isascii() and category.startswith("S"))
        spaced += f" {character} " if alone or 0x3400 <= ord(character) <= 0x9FFF else character
    return spaced.split()


def _softmax(x):
    x = np.exp(x - x.max(axis=1, keepdims=True))
    return x / x.sum(axis=1, keepdims=True)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
