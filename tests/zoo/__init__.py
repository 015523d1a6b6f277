"""Defects that each break one promise, planted one at a time in a copy of the code: the tests must see every one."""
