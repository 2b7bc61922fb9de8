//! The InfiniBand transport services RC, UC and UD.
