"""The command's parts: one module per group of subcommands, and the views of a running job."""
