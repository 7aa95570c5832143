//! What the compiler says of mistakes.
#![allow(missing_docs)]

#[test]
fn mistakes_are_errors_that_say_what_to_do() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
