"""What tests of several areas share: real processes, hand-written files."""
