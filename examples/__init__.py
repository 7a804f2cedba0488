"""Worked examples, each a program that can be run."""
