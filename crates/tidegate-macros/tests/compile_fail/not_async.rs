#[tidegate_macros::rate_limit("10/s")]
fn search() -> Result<(), ()> {
    Ok(())
}

fn main() {}
