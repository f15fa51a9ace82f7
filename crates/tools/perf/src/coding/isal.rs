//! ISA-L's encoder, to compare ours with.

#![allow(unsafe_code)]

use std::ffi::c_int;

// For the library that comes with it.
use isal_sys as _;
use longhaul_coding::{Code, Coder, MessageLayout};

// erasure_code.h; the crate's own bindings are for compression only.
unsafe extern "C" {
    fn ec_init_tables(k: c_int, rows: c_int, matrix: *const u8, tables: *mut u8);
    fn ec_encode_data(
        length: c_int,
        k: c_int,
        rows: c_int,
        tables: *const u8,
        data: *const *const u8,
        parity: *const *mut u8,
    );
}

/// Bytes of tables for each coefficient.
const TABLE_BYTES: usize = 32;

/// Encodes an MDS code of ours.
pub(super) struct Encoder {
    code: Code,
    tables: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(code: Code) -> Encoder {
        let (k, m) = (code.data_chunks(), code.parity_chunks());
        let mut matrix = vec![0; m * k];
        // A chunk of a single 1 among zeros shows the coefficients of that chunk.
        for chunk in 0..k {
            let data: Vec<&[u8]> = (0..k).map(|other| if other == chunk { &[1][..] } else { &[0][..] }).collect();
            let mut parity = vec![[0]; m];
            let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(|byte| &mut byte[..]).collect();
            Coder::new(code).encode(&data, &mut slices).expect("chunks as the code has them");
            (0..m).for_each(|row| matrix[row * k + chunk] = parity[row][0]);
        }
        let mut tables = vec![0; TABLE_BYTES * k * m];
        // SAFETY: the matrix has m rows of k bytes, and there are 32 bytes of tables for each of them, as the header
        // asks.
        unsafe { ec_init_tables(k as c_int, m as c_int, matrix.as_ptr(), tables.as_mut_ptr()) };
        Encoder { code, tables }
    }

    pub(super) fn code(&self) -> Code {
        self.code
    }

    /// As `Coder::encode_message` does, for messages of whole submessages.
    pub(super) fn encode_message(&self, layout: &MessageLayout, data: &[u8], parity: &mut [u8]) {
        let (k, m, chunk_bytes) = (self.code.data_chunks(), self.code.parity_chunks(), layout.chunk_bytes());
        let submessages = data.chunks(k * chunk_bytes).zip(parity.chunks_mut(m * chunk_bytes));
        for (data, parity) in submessages {
            assert!(data.len() == k * chunk_bytes && parity.len() == m * chunk_bytes, "whole submessages");
            let data: Vec<*const u8> = data.chunks(chunk_bytes).map(<[u8]>::as_ptr).collect();
            let parity: Vec<*mut u8> = parity.chunks_mut(chunk_bytes).map(<[u8]>::as_mut_ptr).collect();
            // SAFETY: k chunks to read and m to write, each of `chunk_bytes` bytes, which fits into an int; the tables
            // are for k and m.
            unsafe {
                let (k, m) = (k as c_int, m as c_int);
                ec_encode_data(chunk_bytes as c_int, k, m, self.tables.as_ptr(), data.as_ptr(), parity.as_ptr());
            }
        }
    }
}
