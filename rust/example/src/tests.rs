use super::*;

#[test]
fn a_bad_configuration_is_refused_with_its_reason() {
    let right = "# a shop\ngreeting = \"hello\"\nmost_object_bytes = 64\n";
    assert_eq!(parsed(right).unwrap().greeting, "hello");
    for (text, why) in [
        ("greeting = \"x\"", "most_object_bytes is missing"),
        ("most_object_bytes = many", "\"many\" is no number of bytes"),
        ("colour = red", "unknown key \"colour\""),
        ("nothing", "no '=' in \"nothing\""),
    ] {
        assert_eq!(parsed(text).unwrap_err(), why);
    }
    assert!(configured("/no/such", None)
        .unwrap_err()
        .contains("SHOP_PORT"));
    assert!(configured("/no/such", Some("8080"))
        .unwrap_err()
        .contains("/no/such"));
}
