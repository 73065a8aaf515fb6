use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}

#[test]
fn the_counter_mode_is_that_of_rfc_3711() {
    let key: [u8; 16] = bytes("2B7E151628AED2A6ABF7158809CF4F3C")
        .try_into()
        .unwrap();
    let iv = bytes("F0F1F2F3F4F5F6F7F8F9FAFBFCFD0000")
        .try_into()
        .unwrap();
    let stream =
        bytes("E03EAD0935C95E80E166B16DD92B4EB4 D23513162B02D0F72A43A2FE4A5F97AB 41E95B3BB0A2E8DD");
    let mut cipher = SupportedAes128CmSha1_80::create_cipher(&Crypto, key, true);
    let mut out = vec![0; 60];
    cipher.encrypt(&iv, &[0; 40], &mut out).unwrap();
    assert_eq!(out[..40], stream);
    assert!(
        cipher.decrypt(&iv, &[0; 61], &mut out).is_err(),
        "there is no room"
    );
}

/// RFC 7714, 16.1.1.
#[test]
fn galois_mode_is_that_of_rfc_7714_and_verifies() {
    let key: [u8; 16] = bytes("000102030405060708090a0b0c0d0e0f")
        .try_into()
        .unwrap();
    let iv = bytes("51753c6580c2726f20718414").try_into().unwrap();
    let header = bytes("8040f17b 8041f8d3 5501a0b2");
    let text = b"Gallia est omnis divisa in partes tres";
    let sealed = bytes(
        "f24de3a3 fb34de6c acba861c 9d7e4bca be633bd5 0d294e6f 42a5f47a 51c7d19b 36de3adf 8833
         899d7f27 beb16a91 52cf765e e4390cce",
    );
    let mut cipher = SupportedAeadAes128Gcm::create_cipher(&Crypto, key, true);
    let mut out = vec![0; sealed.len()];
    cipher.encrypt(&iv, &header, text, &mut out).unwrap();
    assert_eq!(out, sealed);
    for aads in [&[&header[..]][..], &[&header[..5], &header[5..]]] {
        let mut open = vec![0; text.len()];
        assert_eq!(
            cipher.decrypt(&iv, aads, &sealed, &mut open).unwrap(),
            text.len()
        );
        assert_eq!(open, text);
        for wrong in 0..sealed.len() {
            let mut sealed = sealed.clone();
            sealed[wrong] ^= 1;
            assert!(cipher.decrypt(&iv, aads, &sealed, &mut open).is_err());
        }
    }
    assert!(cipher.decrypt(&iv, &[], &sealed[..15], &mut out).is_err());
}

/// RFC 2202, 3, case 1; RFC 3174, 7.3, test 1; FIPS 180-2, B.1.
#[test]
fn digests_are_those_of_their_standards() {
    let hmac = Crypto.sha1_hmac(&[0x0b; 20], &[b"Hi ", b"There"]);
    assert_eq!(
        hmac.to_vec(),
        bytes("b617318655057264e28bc0b6fb378c8ef146be00")
    );
    assert_eq!(
        Crypto.sha1(b"abc").to_vec(),
        bytes("a9993e364706816aba3e25717850c26c9cd0d89d")
    );
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(Crypto.sha256(b"abc").to_vec(), bytes(sha256));
}

/// FIPS 197, C.1 and C.3.
#[test]
fn a_block_is_encrypted_as_fips_197_says() {
    let key: Vec<u8> = (0..32).collect();
    let (block, mut out) = (bytes("00112233445566778899aabbccddeeff"), [0; 32]);
    Crypto.srtp_aes_128_ecb_round(&key[..16], &block, &mut out);
    assert_eq!(out[..16], bytes("69c4e0d86a7b0430d8cdb78070b4c55a"));
    Crypto.srtp_aes_256_ecb_round(&key, &block, &mut out);
    assert_eq!(out[..16], bytes("8ea2b7ca516745bfeafc49904b496089"));
}
