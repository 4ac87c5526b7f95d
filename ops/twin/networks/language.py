"""The language model and the translation model of docs/published.md."""

from __future__ import annotations

from ops.twin.networks import Ids, LayerOf, Network, Rows, Weights

UNROLL, WORDS, WIDTH, STATE, SAMPLES = 20, 793_470, 512, 2048, 8192
SENTENCE = 25
"""Words of a source sentence and of a target sentence: an assumption, as the paper does not state their lengths."""

_VOCABULARY, _UNITS = 36_549, 1024


def language_model() -> Network:
    """Returns an LSTM of 2048 cells projected to 512, two tables of 793,470 words, and a softmax of 8192 negatives."""
    of_inputs, of_targets, drawn = Ids("inputs", UNROLL), Ids("targets", UNROLL), Ids("sampled", drawn=SAMPLES)
    kernel = Weights("lstm_kernel", (2 * WIDTH, 4 * STATE))
    projection = Weights("lstm_projection", (STATE, WIDTH))
    lstm = LayerOf(
        "lstm",
        UNROLL * (kernel.elements + projection.elements),
        (kernel, Weights("lstm_bias", (4 * STATE,)), projection),
        (Rows("embedding", WORDS, WIDTH, (of_inputs,)),),
    )
    told = (of_targets, drawn)
    softmax = LayerOf(
        "softmax",
        UNROLL * WIDTH * (SAMPLES + 1),
        (),
        (Rows("softmax_w", WORDS, WIDTH, told), Rows("softmax_b", WORDS, 1, told)),
    )
    return Network("words", UNROLL, "adagrad", (lstm, softmax))


def translation() -> Network:
    """Returns three LSTM layers of 1024 on each side with attention, and a projection onto all 36,549 target words.

    Its throughput counts the words of both languages.
    """
    source = Rows("source_embedding", _VOCABULARY, _UNITS, (Ids("source", SENTENCE),))
    target = Rows("target_embedding", _VOCABULARY, _UNITS, (Ids("previous", SENTENCE),))
    half = _UNITS // 2
    layers = [
        _lstm("encoder_forward", _UNITS, half, source),
        _lstm("encoder_backward", _UNITS, half),
        _lstm("encoder_1", _UNITS, _UNITS),
        _lstm("encoder_2", _UNITS, _UNITS),
        _dense("attention", Weights("attention", (_UNITS, _UNITS))),
        _lstm("decoder_0", 2 * _UNITS, _UNITS, target),
        _lstm("decoder_1", 2 * _UNITS, _UNITS),
        _lstm("decoder_2", 2 * _UNITS, _UNITS),
        _dense("projection", Weights("projection", (_VOCABULARY, _UNITS)), Weights("projection_bias", (_VOCABULARY,))),
    ]
    return Network("words", 2 * SENTENCE, "adagrad", tuple(layers))


def _lstm(name: str, inputs: int, state: int, *tables: Rows) -> LayerOf:
    kernel = Weights(f"{name}_kernel", (inputs + state, 4 * state))
    bias = Weights(f"{name}_bias", (4 * state,))
    return LayerOf(name, SENTENCE * kernel.elements, (kernel, bias), tables, SENTENCE * state)


def _dense(name: str, kernel: Weights, *more: Weights) -> LayerOf:
    return LayerOf(name, SENTENCE * kernel.elements, (kernel, *more))
