use super::*;

#[test]
fn objects_end_where_they_should() {
    let mut text = Vec::new();
    object(20, &mut text).unwrap();
    assert_eq!(text, b"100000000000000\n1000");
}

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

#[test]
fn a_request_is_read_to_its_end_and_no_further() {
    let mut input = &b"GET /o/3 HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.0\r\n\r\n"[..];
    let first = request(&mut input).unwrap().unwrap();
    assert_eq!((first.path.as_str(), first.last), ("/o/3", false));
    assert!(request(&mut input).unwrap().unwrap().last);
    assert!(request(&mut input).unwrap().is_none());
}
