"""DP-SGD of one module on one party's rows."""
