"""trigemm in other libraries. Each module here needs the library that it is named after; `import trigemm` loads none of them."""
