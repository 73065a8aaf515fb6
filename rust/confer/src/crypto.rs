//! Cryptography for str0m: ring, for what it has, and what of RustCrypto dimpl brings along anyway. str0m's own packages
//! of it would need a C library more (aws-lc), or were not to be had for this version of it.

use std::sync::Arc;
use std::time::Instant;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use ring::aead::{Aad, LessSafeKey, Nonce, Tag, UnboundKey, AES_128_GCM, AES_256_GCM};
use ring::{digest, hmac};
use str0m_proto::crypto::dtls::{
    DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, ProtocolVersion,
};
use str0m_proto::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, CryptoProvider,
    DtlsVersion, Sha1HmacProvider, Sha1Provider, Sha256Provider, SrtpProvider,
    SupportedAeadAes128Gcm, SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
};
use virtoll_generator::Failed;

const BLOCK_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// Headers of RTP and of RTCP, which are authenticated and not encrypted; those with more extensions are copied to the heap.
const HEADER_BYTES: usize = 256;

/// What str0m needs.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        srtp_provider: &Crypto,
        sha1_hmac_provider: &Crypto,
        sha1_provider: &Crypto,
        sha256_provider: &Crypto,
        dtls_provider: &Crypto,
    })
}

/// A key and a certificate that says nothing but that it is the key's. One does for all participants.
pub fn certificate() -> Result<DtlsCert, Failed> {
    let failed = |error: rcgen::Error| Failed(format!("no certificate could be made: {error}"));
    let key = rcgen::KeyPair::generate().map_err(failed)?; // ECDSA, P-256 (RFC 8827, 6.5)
    let names = rcgen::CertificateParams::new(vec!["virtoll".to_owned()]).map_err(failed)?;
    let certificate = names.self_signed(&key).map_err(failed)?;
    Ok(DtlsCert {
        certificate: certificate.der().to_vec(),
        private_key: key.serialize_der(),
    })
}

#[derive(Debug)]
struct Crypto;

fn other(what: &str) -> CryptoError {
    CryptoError::Other(what.to_owned())
}

/// AES in counter mode (RFC 3711, 4.1.1).
#[derive(Debug)]
struct Counter(Aes128);

impl Aes128CmSha1_80Cipher for Counter {
    fn encrypt(&mut self, iv: &[u8; 16], input: &[u8], out: &mut [u8]) -> Result<(), CryptoError> {
        let out = out.get_mut(..input.len()).ok_or(other("no room"))?;
        let first = u128::from_be_bytes(*iv);
        let blocks = input.chunks(BLOCK_BYTES).zip(out.chunks_mut(BLOCK_BYTES));
        for (counter, (input, out)) in (0u128..).zip(blocks) {
            let mut block = first.wrapping_add(counter).to_be_bytes().into();
            self.0.encrypt_block(&mut block);
            for ((out, input), key) in out.iter_mut().zip(input).zip(block) {
                *out = input ^ key;
            }
        }
        Ok(())
    }

    fn decrypt(&mut self, iv: &[u8; 16], input: &[u8], out: &mut [u8]) -> Result<(), CryptoError> {
        self.encrypt(iv, input, out)
    }
}

/// AES in Galois/counter mode (RFC 7714).
#[derive(Debug)]
struct Galois(LessSafeKey);

impl Galois {
    fn seal(
        &self,
        iv: [u8; 12],
        aad: &[u8],
        input: &[u8],
        out: &mut [u8],
    ) -> Result<(), CryptoError> {
        let out = out
            .get_mut(..input.len() + TAG_BYTES)
            .ok_or(other("no room"))?;
        let (text, tag) = out.split_at_mut(input.len());
        text.copy_from_slice(input);
        let nonce = Nonce::assume_unique_for_key(iv);
        let sealed = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(aad), text);
        tag.copy_from_slice(sealed.map_err(|_| other("AES-GCM"))?.as_ref());
        Ok(())
    }

    fn open(
        &self,
        iv: [u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let (text, tag) = input
            .split_last_chunk::<TAG_BYTES>()
            .ok_or(other("too short"))?;
        let out = out.get_mut(..text.len()).ok_or(other("no room"))?;
        out.copy_from_slice(text);
        let (nonce, tag) = (Nonce::assume_unique_for_key(iv), Tag::from(*tag));
        let open = |aad: &[u8], out: &mut [u8]| {
            let opened = self
                .0
                .open_in_place_separate_tag(nonce, Aad::from(aad), tag, out, 0..);
            opened.map(|_| ()).map_err(|_| other("AES-GCM"))
        };
        let bytes = aads.iter().map(|aad| aad.len()).sum::<usize>();
        match aads {
            [aad] => open(aad, out)?,
            _ if bytes <= HEADER_BYTES => {
                let (mut whole, mut at) = ([0; HEADER_BYTES], 0);
                for aad in aads {
                    whole[at..at + aad.len()].copy_from_slice(aad);
                    at += aad.len();
                }
                open(&whole[..at], out)?;
            }
            _ => open(&aads.concat(), out)?,
        }
        Ok(text.len())
    }
}

impl AeadAes128GcmCipher for Galois {
    fn encrypt(
        &mut self,
        iv: &[u8; 12],
        aad: &[u8],
        input: &[u8],
        out: &mut [u8],
    ) -> Result<(), CryptoError> {
        self.seal(*iv, aad, input, out)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CryptoError> {
        self.open(*iv, aads, input, out)
    }
}

impl AeadAes256GcmCipher for Galois {
    fn encrypt(
        &mut self,
        iv: &[u8; 12],
        aad: &[u8],
        input: &[u8],
        out: &mut [u8],
    ) -> Result<(), CryptoError> {
        self.seal(*iv, aad, input, out)
    }

    fn decrypt(
        &mut self,
        iv: &[u8; 12],
        aads: &[&[u8]],
        input: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CryptoError> {
        self.open(*iv, aads, input, out)
    }
}

impl SupportedAes128CmSha1_80 for Crypto {
    fn create_cipher(&self, key: [u8; 16], _encrypt: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        Box::new(Counter(Aes128::new(&key.into())))
    }
}

impl SupportedAeadAes128Gcm for Crypto {
    fn create_cipher(&self, key: [u8; 16], _encrypt: bool) -> Box<dyn AeadAes128GcmCipher> {
        let key = UnboundKey::new(&AES_128_GCM, &key).expect("sixteen bytes are its key");
        Box::new(Galois(LessSafeKey::new(key)))
    }
}

impl SupportedAeadAes256Gcm for Crypto {
    fn create_cipher(&self, key: [u8; 32], _encrypt: bool) -> Box<dyn AeadAes256GcmCipher> {
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("thirty-two bytes are its key");
        Box::new(Galois(LessSafeKey::new(key)))
    }
}

impl SrtpProvider for Crypto {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        &Crypto
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &Crypto
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        &Crypto
    }

    fn srtp_aes_128_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        let cipher = Aes128::new_from_slice(key).expect("str0m gives a key of AES-128");
        round(|block| cipher.encrypt_block(block), input, output);
    }

    fn srtp_aes_256_ecb_round(&self, key: &[u8], input: &[u8], output: &mut [u8]) {
        let cipher = Aes256::new_from_slice(key).expect("str0m gives a key of AES-256");
        round(|block| cipher.encrypt_block(block), input, output);
    }
}

/// One block, of which str0m takes sixteen bytes to derive keys (RFC 3711, 4.3.3).
fn round(encrypt: impl FnOnce(&mut aes::Block), input: &[u8], output: &mut [u8]) {
    let mut block = aes::Block::try_from(input).expect("str0m gives a block");
    encrypt(&mut block);
    output[..BLOCK_BYTES].copy_from_slice(&block);
}

impl Sha1HmacProvider for Crypto {
    fn sha1_hmac(&self, key: &[u8], payloads: &[&[u8]]) -> [u8; 20] {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key);
        let mut context = hmac::Context::with_key(&key);
        payloads.iter().for_each(|payload| context.update(payload));
        let tag = context.sign();
        tag.as_ref().try_into().expect("SHA-1 has twenty bytes")
    }
}

impl Sha1Provider for Crypto {
    fn sha1(&self, data: &[u8]) -> [u8; 20] {
        let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, data);
        digest.as_ref().try_into().expect("SHA-1 has twenty bytes")
    }
}

impl Sha256Provider for Crypto {
    fn sha256(&self, data: &[u8]) -> [u8; 32] {
        let digest = digest::digest(&digest::SHA256, data);
        digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

impl DtlsProvider for Crypto {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        certificate().ok()
    }

    fn new_dtls(
        &self,
        cert: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        // ICE has shown that the peer is where it says: cookies would show it again.
        let mut config = dimpl::Config::builder().use_server_cookie(false);
        if let Some(mtu) = mtu {
            config = config.mtu(mtu);
        }
        let config = config.build().map_err(|error| other(&error.to_string()))?;
        let (config, cert) = (Arc::new(config), cert.clone());
        Ok(Box::new(Dtls(match version {
            DtlsVersion::Dtls12 => dimpl::Dtls::new_12(config, cert, now),
            DtlsVersion::Dtls13 => dimpl::Dtls::new_13(config, cert, now),
            _ => dimpl::Dtls::new_auto(config, cert, now),
        })))
    }
}

struct Dtls(dimpl::Dtls);

impl std::fmt::Debug for Dtls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Dtls")
    }
}

impl DtlsInstance for Dtls {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buf: &'a mut [u8]) -> DtlsOutput<'a> {
        self.0.poll_output(buf)
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}

#[cfg(test)]
#[path = "crypto_tests.rs"]
mod tests;
