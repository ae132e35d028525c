"""What runs inside the sandbox. Nothing here may import anything but the standard library."""
