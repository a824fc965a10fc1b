"""The recipe of a tiny network."""

TINY = """
[network]
width = 16
heads = 2
feedforward = 32
kernels = 4

[encoder]
layers = 1
left_frames = 4
centre_frames = 4
right_frames = 2
mode = "reuse"

[decoder]
layers = 1
energy_bias = -1.0

[data]
train = "{corpus}/train.jsonl"
dev = "{corpus}/dev.jsonl"
tokens = "words"
workers = 0

[training]
epochs = 2
batch_frames = 400
noam_factor = 0.5
warmup_updates = 10
average = 2
frequency_mask_bins = 20
time_mask_frames = 30
"""
