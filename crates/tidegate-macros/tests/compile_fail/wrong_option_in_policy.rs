#[tidegate_macros::rate_limit("10/s; fixed_window 100/minute burst=5")]
async fn search() -> Result<(), ()> {
    Ok(())
}

fn main() {}
