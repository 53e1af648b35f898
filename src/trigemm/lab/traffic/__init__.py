"""Transaction counts of CUDA kernels without a GPU: `trace`, `record`, and the sanitizer on the same log."""
