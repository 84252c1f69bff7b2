"""Evaluation of KernelBench-style solutions: load, build, check, time, record, report."""
