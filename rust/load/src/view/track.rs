//! What is played of a manifest: tracks (of HLS one; of DASH an adaptation set each), their qualities and segments.

use std::rc::Rc;

use super::fetch::Site;
use super::mpd::Representation;
use super::playlist::{self, Media, Playlist, Segment, Variant};
use super::text;
use crate::tally::Failure;

/// One quality.
#[derive(Debug)]
pub struct Level {
    /// Its URI is a path: of its playlist, or of what its segments' URIs are relative to.
    pub variant: Variant,
    /// Of DASH: what is asked for before its first segment, until it has been.
    pub initialization: Option<String>,
    /// When its playlist is to be asked for anew.
    pub reload_ns: i64,
    /// What says which segments it has, and of DASH which representation there it is. None: to be asked for.
    listed: Option<(Rc<Playlist>, usize)>,
}

impl Level {
    /// The quality that this playlist of media, or of variants, tells of; `path`: its own.
    pub fn at(path: String, bit_per_s: u64) -> Self {
        Level {
            variant: Variant {
                bit_per_s,
                uri: path,
            },
            initialization: None,
            reload_ns: 0,
            listed: None,
        }
    }

    pub fn media(&self) -> Option<&Media> {
        let (playlist, index) = self.listed.as_ref()?;
        match &**playlist {
            Playlist::Media(media) => Some(media),
            Playlist::Presentation(all) => all.get(*index).map(|each| &each.media),
            Playlist::Master(_) | Playlist::Live(_) => None,
        }
    }

    /// Its playlist of media has come; whether it is another than before.
    pub fn learn(&mut self, playlist: Rc<Playlist>) -> bool {
        let before = self.listed.replace((playlist.clone(), 0));
        before.is_none_or(|(before, _)| before != playlist)
    }

    /// What is known of a live playlist is old by now.
    pub fn forget_live(&mut self) {
        if self.media().is_some_and(|media| !media.ended) {
            self.listed = None;
        }
    }

    /// The path of one of its segments.
    pub fn path(&self, site: &Site, segment: &Segment) -> Option<String> {
        playlist::resolved(&site.authority, &self.variant.uri, &segment.uri)
    }
}

#[derive(Debug)]
pub struct Track {
    /// Ascending by bit rate, and never empty.
    pub levels: Vec<Level>,
    pub level: usize,
    /// Of the next segment, once one was chosen.
    pub sequence: Option<u64>,
    /// Media that came.
    pub got_ns: i64,
    pub is_whole: bool,
}

impl Track {
    pub fn new(levels: Vec<Level>) -> Self {
        Track {
            levels,
            level: 0,
            sequence: None,
            got_ns: 0,
            is_whole: false,
        }
    }

    pub fn level(&self) -> &Level {
        &self.levels[self.level]
    }

    pub fn level_mut(&mut self) -> &mut Level {
        &mut self.levels[self.level]
    }

    /// A segment of the one under way has come whole.
    pub fn got(&mut self, duration_ns: i64) {
        let next = self.sequence.map_or(0, |sequence| sequence + 1);
        self.sequence = Some(next);
        self.got_ns = self.got_ns.saturating_add(duration_ns); // a server says how long a segment is
        let media = self.level().media();
        self.is_whole = media.is_some_and(|media| media.ends_before(next));
    }
}

/// The one whose media reach the least far: its segment is next.
pub fn hindmost(tracks: &[Track]) -> usize {
    let left = (0..tracks.len()).filter(|at| !tracks[*at].is_whole);
    left.min_by_key(|at| tracks[*at].got_ns).unwrap_or(0)
}

/// Until when all tracks that have not ended have come, and whether all have.
pub fn come(tracks: &[Track]) -> (i64, bool) {
    let left = tracks.iter().filter(|track| !track.is_whole);
    let ends_ns = tracks.iter().map(|track| track.got_ns).max().unwrap_or(0);
    let until_ns = left.map(|track| track.got_ns).min();
    (until_ns.unwrap_or(ends_ns), until_ns.is_none())
}

/// Of a playlist of variants at this path: its qualities.
pub fn variants(site: &Site, base: &str, variants: &[Variant]) -> Result<Vec<Level>, Failure> {
    let level = |variant: &Variant| {
        let path = playlist::resolved(&site.authority, base, &variant.uri);
        Ok(Level::at(path.ok_or(Failure::Parse)?, variant.bit_per_s))
    };
    variants.iter().map(level).collect()
}

/// Of an MPD at this path: its tracks.
pub fn presented(
    site: &Site,
    base: &str,
    playlist: &Rc<Playlist>,
    all: &[Representation],
    is_text: bool,
) -> Result<Vec<Track>, Failure> {
    let mut tracks: Vec<Track> = Vec::new();
    for (index, each) in all.iter().enumerate() {
        let resolved = |base: &str, uri: &str| {
            playlist::resolved(&site.authority, base, uri).ok_or(Failure::Parse)
        };
        let mut path = base.to_owned();
        for uri in &each.bases {
            path = resolved(&path, uri)?;
        }
        checked(site, &path, &each.media, is_text)?;
        let initialization = each.initialization.as_ref();
        let initialization = initialization.map(|uri| resolved(&path, uri)).transpose()?;
        if is_text && initialization.is_some() {
            return Err(Failure::Content); // it could be anything
        }
        let level = Level {
            initialization,
            listed: Some((playlist.clone(), index)),
            ..Level::at(path, each.bit_per_s)
        };
        match tracks.get_mut(each.track) {
            Some(track) => track.levels.push(level),
            None => tracks.push(Track::new(vec![level])),
        }
    }
    Ok(tracks)
}

/// Whether all segments are on this server; and, where they must be text, pieces of it.
pub fn checked(site: &Site, base: &str, media: &Media, is_text: bool) -> Result<(), Failure> {
    for segment in &media.segments {
        let path = playlist::resolved(&site.authority, base, &segment.uri).ok_or(Failure::Parse)?;
        if is_text && text::piece(&path).is_none() {
            return Err(Failure::Content); // it could be anything
        }
    }
    Ok(())
}
