//! Compile errors of invalid uses of the attribute.
#![allow(missing_docs)]

#[test]
fn invalid_uses_fail_with_helpful_errors() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
