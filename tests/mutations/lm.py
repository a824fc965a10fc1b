"""Faults in the language models."""

from __future__ import annotations

from mutations.mutation import Mutation

ARPA, LSTM, WORDS = "tests/lm/test_arpa.py", "tests/lm/test_lstm.py", "tests/lm/test_word_lm.py"

MUTATIONS: list[Mutation] = [
    Mutation(
        "the back-off weight is dropped",
        "lm/arpa.py",
        "log_p_V = shorter + here.back_off",
        "log_p_V = shorter.copy()",
        (ARPA,),
    ),
    Mutation(
        "the context does not move",
        "lm/arpa.py",
        "context_BN = np.concatenate([context_BN, self.context_id_V[tokens_B, None]], axis=1)[:, 1:]",
        "context_BN = np.concatenate([context_BN, self.context_id_V[tokens_B, None]], axis=1)[:, :-1]",
        (ARPA,),
    ),
    Mutation(
        "the forget gate is dropped",
        "lm/lstm.py",
        "cell = _sigmoid(forget) * cell_BE + _sigmoid(into) * np.tanh(new)",
        "cell = cell_BE + _sigmoid(into) * np.tanh(new)",
        (LSTM,),
    ),
    Mutation(
        "a recurrent bias is dropped",
        "lm/lstm.py",
        'bias = weights[f"lstm.bias_ih_l{number}"] + weights[f"lstm.bias_hh_l{number}"]',
        'bias = weights[f"lstm.bias_ih_l{number}"]',
        (LSTM,),
    ),
    Mutation(
        "the blank has a probability",
        "lm/lstm.py",
        "scores[:, 0] = -np.inf",
        "pass",
        (LSTM,),
    ),
    Mutation(
        "the score of a prefix is not divided out",
        "lm/word_lm.py",
        "return scores_V - prefix.log_p",
        "return scores_V",
        (WORDS,),
    ),
    Mutation(
        "a word and a space do not imply that the sentence goes on",
        "lm/word_lm.py",
        "return word + math.log1p(-after.end), word + math.log(after.end)",
        "return word, word + math.log(after.end)",
        (WORDS,),
    ),
]
