"""The transposed convolution of problem 2/11 alone, at its full size."""

import torch
import torch.nn as nn


class Model(nn.Module):
    """Transposed convolution with a bias."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv_transpose(x)


batch_size = 512
in_channels = 64
out_channels = 128
height = width = 32
kernel_size = 5
stride = 1
padding = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding]
