"""What commands share: options, exit codes and what a user sees on the screen."""
