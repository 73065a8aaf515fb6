//! Dhrystone 2.1, after R. P. Weicker, "Dhrystone Benchmark: Rationale for Version 2 and Measurement Rules", SIGPLAN
//! Notices 23(8), 1988: its statements, in Rust. By its rules no procedure is merged into another (`inline(never)`).
//!
//! Names follow the original's, so that it can be read beside it. Records are two places of an array, and a pointer
//! is the number of one.

use std::hint::black_box;

use super::copies::{Lap, Work};
use super::Quantity;
use crate::report::Failed;

pub const QUANTITY: Quantity = Quantity {
    key: "dhrystones_per_s",
    unit: "/s",
    per_unit: 1.0,
    proof: "the final values are those of the definition",
};

/// A copy's work; a unit is one run through the loop.
pub fn prepare() -> Result<Work, Failed> {
    Ok(Box::new(|units| {
        let mut globals = Globals::new();
        let mut locals = Locals::default();
        let lap = Lap::of(|| {
            for run in 1..=units {
                locals = black_box(&mut globals).run(run as i32);
                black_box(&mut locals);
            }
        });
        Ok(lap.verified(wrong(&globals, &locals, units)))
    }))
}

const STRING_BYTES: usize = 31; // with its end, as in C
type Str30 = [u8; STRING_BYTES];
const SOME_STRING: Str30 = *b"DHRYSTONE PROGRAM, SOME STRING\0";
const FIRST_STRING: Str30 = *b"DHRYSTONE PROGRAM, 1'ST STRING\0";
const SECOND_STRING: Str30 = *b"DHRYSTONE PROGRAM, 2'ND STRING\0";
const THIRD_STRING: Str30 = *b"DHRYSTONE PROGRAM, 3'RD STRING\0";

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Ident {
    #[default]
    One,
    Two,
    Three,
    Four,
    #[allow(dead_code)] // as in the original: of five, one is never used
    Five,
}

#[derive(Clone, Copy)]
struct Record {
    ptr_comp: usize,
    discr: Ident,
    enum_comp: Ident,
    int_comp: i32,
    str_comp: Str30,
}

struct Globals {
    records: [Record; 2],
    ptr_glob: usize,
    next_ptr_glob: usize,
    int_glob: i32,
    bool_glob: bool,
    ch_1_glob: u8,
    ch_2_glob: u8,
    arr_1_glob: [i32; 50],
    arr_2_glob: [[i32; 50]; 50],
}

/// The main procedure's variables at the end of a run.
#[derive(Default)]
struct Locals {
    int_1: i32,
    int_2: i32,
    int_3: i32,
    enumeration: Ident,
    str_1: Str30,
    str_2: Str30,
}

impl Globals {
    fn new() -> Globals {
        let record = Record {
            ptr_comp: 1,
            discr: Ident::One,
            enum_comp: Ident::Three,
            int_comp: 40,
            str_comp: SOME_STRING,
        };
        let mut arr_2_glob = [[0; 50]; 50];
        arr_2_glob[8][7] = 10;
        Globals {
            records: [record; 2],
            ptr_glob: 0,
            next_ptr_glob: 1,
            int_glob: 0,
            bool_glob: false,
            ch_1_glob: 0,
            ch_2_glob: 0,
            arr_1_glob: [0; 50],
            arr_2_glob,
        }
    }

    /// The body of the main loop.
    fn run(&mut self, run: i32) -> Locals {
        let str_1 = black_box(FIRST_STRING);
        self.proc_5();
        self.proc_4();
        let mut int_1 = 2;
        let mut int_2 = 3;
        let mut int_3 = 0;
        let mut str_2 = SECOND_STRING;
        let mut enumeration = Ident::Two;
        self.bool_glob = !self.func_2(&str_1, &str_2);
        while int_1 < int_2 {
            int_3 = 5 * int_1 - int_2;
            proc_7(int_1, int_2, &mut int_3);
            int_1 += 1;
        }
        self.proc_8(int_1, int_3);
        self.proc_1(self.ptr_glob);
        for ch_index in b'A'..=self.ch_2_glob {
            if enumeration == self.func_1(ch_index, b'C') {
                self.proc_6(Ident::One, &mut enumeration);
                str_2 = THIRD_STRING;
                int_2 = run;
                self.int_glob = run;
            }
        }
        int_2 *= int_1;
        int_1 = int_2 / int_3;
        int_2 = 7 * (int_2 - int_3) - int_1;
        self.proc_2(&mut int_1);
        Locals {
            int_1,
            int_2,
            int_3,
            enumeration,
            str_1,
            str_2,
        }
    }

    #[inline(never)]
    fn proc_1(&mut self, ptr: usize) {
        let next = self.records[ptr].ptr_comp;
        self.records[next] = self.records[self.ptr_glob];
        self.records[ptr].int_comp = 5;
        self.records[next].int_comp = self.records[ptr].int_comp;
        self.records[next].ptr_comp = self.records[ptr].ptr_comp;
        self.proc_3(next);
        if self.records[next].discr == Ident::One {
            self.records[next].int_comp = 6;
            let mut enum_comp = self.records[next].enum_comp;
            self.proc_6(self.records[ptr].enum_comp, &mut enum_comp);
            self.records[next].enum_comp = enum_comp;
            self.records[next].ptr_comp = self.records[self.ptr_glob].ptr_comp;
            let int_comp = self.records[next].int_comp;
            proc_7(int_comp, 10, &mut self.records[next].int_comp);
        } else {
            self.records[ptr] = self.records[self.records[ptr].ptr_comp];
        }
    }

    #[inline(never)]
    fn proc_2(&self, int_par: &mut i32) {
        let mut int_loc = *int_par + 10;
        loop {
            let mut enumeration = Ident::Two;
            if self.ch_1_glob == b'A' {
                int_loc -= 1;
                *int_par = int_loc - self.int_glob;
                enumeration = Ident::One;
            }
            if enumeration == Ident::One {
                break;
            }
        }
    }

    /// `next` is the record whose pointer is the parameter. The original asks whether Ptr_Glob is null; it never is.
    #[inline(never)]
    fn proc_3(&mut self, next: usize) {
        if let Some(record) = self.records.get(self.ptr_glob) {
            self.records[next].ptr_comp = record.ptr_comp;
        }
        proc_7(10, self.int_glob, &mut self.records[self.ptr_glob].int_comp);
    }

    #[inline(never)]
    fn proc_4(&mut self) {
        let bool_loc = self.ch_1_glob == b'A';
        self.bool_glob |= bool_loc;
        self.ch_2_glob = b'B';
    }

    #[inline(never)]
    fn proc_5(&mut self) {
        self.ch_1_glob = b'A';
        self.bool_glob = false;
    }

    #[inline(never)]
    fn proc_6(&self, given: Ident, enumeration: &mut Ident) {
        *enumeration = given;
        if !func_3(given) {
            *enumeration = Ident::Four;
        }
        match given {
            Ident::One => *enumeration = Ident::One,
            Ident::Two if self.int_glob > 100 => *enumeration = Ident::One,
            Ident::Two => *enumeration = Ident::Four,
            Ident::Three => *enumeration = Ident::Two,
            Ident::Four => {}
            Ident::Five => *enumeration = Ident::Three,
        }
    }

    #[inline(never)]
    fn proc_8(&mut self, int_1: i32, int_2: i32) {
        let place = (int_1 + 5) as usize;
        self.arr_1_glob[place] = int_2;
        self.arr_1_glob[place + 1] = self.arr_1_glob[place];
        self.arr_1_glob[place + 30] = place as i32;
        for index in place..=place + 1 {
            self.arr_2_glob[place][index] = place as i32;
        }
        self.arr_2_glob[place][place - 1] = self.arr_2_glob[place][place - 1].wrapping_add(1);
        self.arr_2_glob[place + 20][place] = self.arr_1_glob[place];
        self.int_glob = 5;
    }

    #[inline(never)]
    fn func_1(&mut self, ch_1: u8, ch_2: u8) -> Ident {
        let ch_loc = ch_1;
        if ch_loc != ch_2 {
            Ident::One
        } else {
            self.ch_1_glob = ch_loc;
            Ident::Two
        }
    }

    #[inline(never)]
    fn func_2(&mut self, str_1: &Str30, str_2: &Str30) -> bool {
        let mut int_loc = 2;
        let mut ch_loc = b'A';
        while int_loc <= 2 {
            if self.func_1(str_1[int_loc], str_2[int_loc + 1]) == Ident::One {
                ch_loc = b'A';
                int_loc += 1;
            }
        }
        if (b'W'..b'Z').contains(&ch_loc) {
            int_loc = 7;
        }
        if ch_loc == b'R' {
            return true;
        }
        if str_1 > str_2 {
            self.int_glob = int_loc as i32 + 7;
            return true;
        }
        false
    }
}

#[inline(never)]
fn proc_7(int_1: i32, int_2: i32, int_par: &mut i32) {
    let int_loc = int_1 + 2;
    *int_par = int_2 + int_loc;
}

#[inline(never)]
fn func_3(enumeration: Ident) -> bool {
    enumeration == Ident::Three
}

/// What the original prints at its end as "should be", compared; the first that is not.
fn wrong(globals: &Globals, locals: &Locals, runs: u64) -> Option<String> {
    let first = &globals.records[globals.ptr_glob];
    let next = &globals.records[globals.next_ptr_glob];
    let values = [
        ("Int_Glob", globals.int_glob, 5),
        ("Bool_Glob", globals.bool_glob.into(), 1),
        ("Ch_1_Glob", globals.ch_1_glob.into(), b'A'.into()),
        ("Ch_2_Glob", globals.ch_2_glob.into(), b'B'.into()),
        ("Arr_1_Glob[8]", globals.arr_1_glob[8], 7),
        (
            "Arr_2_Glob[8][7]",
            globals.arr_2_glob[8][7],
            10_i32.wrapping_add(runs as i32),
        ),
        (
            "Ptr_Glob->Ptr_Comp",
            first.ptr_comp as i32,
            next.ptr_comp as i32,
        ),
        ("Ptr_Glob->Discr", first.discr as i32, 0),
        ("Ptr_Glob->Enum_Comp", first.enum_comp as i32, 2),
        ("Ptr_Glob->Int_Comp", first.int_comp, 17),
        ("Next_Ptr_Glob->Discr", next.discr as i32, 0),
        ("Next_Ptr_Glob->Enum_Comp", next.enum_comp as i32, 1),
        ("Next_Ptr_Glob->Int_Comp", next.int_comp, 18),
        ("Int_1_Loc", locals.int_1, 5),
        ("Int_2_Loc", locals.int_2, 13),
        ("Int_3_Loc", locals.int_3, 7),
        ("Enum_Loc", locals.enumeration as i32, 1),
    ];
    let strings = [
        ("Ptr_Glob->Str_Comp", first.str_comp, SOME_STRING),
        ("Next_Ptr_Glob->Str_Comp", next.str_comp, SOME_STRING),
        ("Str_1_Loc", locals.str_1, FIRST_STRING),
        ("Str_2_Loc", locals.str_2, SECOND_STRING),
    ];
    let number = values
        .iter()
        .find(|(_, is, right)| is != right)
        .map(|(name, is, right)| format!("{name} is {is}, not {right}"));
    let string = strings.iter().find(|(_, is, right)| is != right);
    number.or_else(|| string.map(|(name, _, _)| format!("{name} is another string")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(runs: u64) -> (Globals, Locals) {
        let mut globals = Globals::new();
        let mut locals = Locals::default();
        for run in 1..=runs {
            locals = globals.run(run as i32);
        }
        (globals, locals)
    }

    #[test]
    fn the_final_values_are_weickers() {
        let (globals, locals) = after(1000);
        assert_eq!(wrong(&globals, &locals, 1000), None);
    }

    #[test]
    fn a_run_too_few_and_a_wrong_value_are_caught() {
        let (mut globals, locals) = after(10);
        assert!(wrong(&globals, &locals, 11).is_some());
        globals.records[1].str_comp[0] = b'd';
        assert!(wrong(&globals, &locals, 10).is_some());
    }
}
