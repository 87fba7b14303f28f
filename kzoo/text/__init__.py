"""Tokenizer, packing into `[CLS] a [SEP] b [SEP]`, vocabulary training."""
