#include "plugins/nixl/records.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tryst::nixl {
namespace {

constexpr uint64_t kVersion = 1;
constexpr char kPeerPrefix[] = "TRYST1 ";
constexpr char kRegionPrefix[] = "TRYST1 region ";
constexpr size_t kMaxAddress = 256;

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": both agents need the plug-in of one release of Tryst"));
}

void AddNumber(uint64_t number, std::string* text) {
  char bytes[sizeof(number)];
  for (char& byte : bytes) {
    byte = static_cast<char>(number & 0xff);
    number >>= 8;
  }
  text->append(bytes, sizeof(bytes));
}

void AddText(absl::string_view added, std::string* text) {
  AddNumber(added.size(), text);
  text->append(added.data(), added.size());
}

class Reader {
 public:
  explicit Reader(absl::string_view text) : left_(text) {}

  bool Number(uint64_t* number) {
    if (left_.size() < sizeof(*number)) return false;
    *number = 0;
    for (size_t i = sizeof(*number); i-- > 0;) {
      *number = *number << 8 | static_cast<unsigned char>(left_[i]);
    }
    left_.remove_prefix(sizeof(*number));
    return true;
  }
  bool Text(size_t most, std::string* text) {
    uint64_t bytes = 0;
    if (!Number(&bytes) || bytes > most || bytes > left_.size()) return false;
    text->assign(left_.data(), bytes);
    left_.remove_prefix(bytes);
    return true;
  }
  // How many things of `each` bytes come. More than there is room for are none.
  bool Count(size_t each, uint64_t* count) {
    return Number(count) && *count <= left_.size() / each;
  }
  bool AtEnd() const { return left_.empty(); }

 private:
  absl::string_view left_;
};

bool ReadHex(absl::string_view text, uint64_t* number) {
  return !text.empty() && text.size() <= 16 && absl::SimpleHexAtoi(text, number);
}

bool IsAddress(absl::string_view address) {
  return !address.empty() && address.size() <= kMaxAddress &&
         std::all_of(address.begin(), address.end(), [](char c) {
           return absl::ascii_isgraph(c) && c != '|' && c != ';' && c != '@';
         });
}

bool ReadPart(Reader* reader, PutPart* part) {
  uint64_t count = 0;
  if (!reader->Number(&part->target) || !reader->Number(&part->source) ||
      !reader->Count(sizeof(PutSpan), &count)) {
    return false;
  }
  part->spans.resize(count);
  for (PutSpan& span : part->spans) {
    if (!reader->Number(&span.lands_at) || !reader->Number(&span.comes_from) ||
        !reader->Number(&span.bytes)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string WritePeerName(const PeerName& name) {
  return absl::StrFormat("%s%s@%s %016x", kPeerPrefix, name.worker, name.address, name.incarnation);
}

absl::StatusOr<PeerName> ReadPeerName(absl::string_view text) {
  PeerName name;
  if (absl::ConsumePrefix(&text, kPeerPrefix)) {
    const size_t at = text.find('@'), blank = text.find(' ');
    if (at != absl::string_view::npos && blank != absl::string_view::npos && at < blank) {
      name.worker = std::string(text.substr(0, at));
      name.address = std::string(text.substr(at + 1, blank - at - 1));
      if (IsAddress(name.address) && ReadHex(text.substr(blank + 1), &name.incarnation)) {
        return name;
      }
    }
  }
  return Wrong("what the peer's agent says of its connection is not Tryst's");
}

std::string WriteRegionId(uint64_t id) { return absl::StrFormat("%s%016x", kRegionPrefix, id); }

absl::StatusOr<uint64_t> ReadRegionId(absl::string_view text) {
  uint64_t id = 0;
  if (absl::ConsumePrefix(&text, kRegionPrefix) && ReadHex(text, &id)) return id;
  return Wrong("what the peer's agent says of its memory is not Tryst's");
}

std::string RegionName(uint64_t id) { return absl::StrFormat("nixl%016x", id); }

std::string WritePutParts(const std::vector<PutPart>& parts) {
  std::string text;
  AddNumber(parts.size(), &text);
  for (const PutPart& part : parts) {
    AddNumber(part.target, &text);
    AddNumber(part.source, &text);
    AddNumber(part.spans.size(), &text);
    text.reserve(text.size() + part.spans.size() * sizeof(PutSpan));
    for (const PutSpan& span : part.spans) {
      AddNumber(span.lands_at, &text);
      AddNumber(span.comes_from, &text);
      AddNumber(span.bytes, &text);
    }
  }
  return text;
}

std::string WritePut(uint64_t id, absl::string_view agent, const std::string* note,
                     absl::string_view parts) {
  std::string text;
  AddNumber(kVersion, &text);
  AddNumber(id, &text);
  AddText(agent, &text);
  AddNumber(note != nullptr, &text);
  AddText(note == nullptr ? absl::string_view() : *note, &text);
  text.append(parts.data(), parts.size());
  return text;
}

absl::StatusOr<Put> ReadPut(absl::string_view text) {
  constexpr size_t kLeastPart = 3 * sizeof(uint64_t);
  Reader reader(text);
  Put put;
  uint64_t version = 0, has_note = 0, parts = 0;
  bool good = reader.Number(&version) && version == kVersion && reader.Number(&put.id) &&
              reader.Text(kMaxAgentName, &put.agent) && reader.Number(&has_note) && has_note <= 1 &&
              reader.Text(kMaxNotification, &put.note) && reader.Count(kLeastPart, &parts);
  if (!good) return Wrong("a WRITE cannot be read");
  put.has_note = has_note == 1;
  put.parts.reserve(parts);
  for (uint64_t i = 0; i < parts && good; ++i) {
    PutPart part;
    good = ReadPart(&reader, &part);
    put.parts.push_back(std::move(part));
  }
  if (!good || !reader.AtEnd()) return Wrong("the spans of a WRITE cannot be read");
  return put;
}

std::string WriteNotes(const Notes& notes) {
  std::string text;
  AddNumber(kVersion, &text);
  AddNumber(notes.number, &text);
  AddText(notes.agent, &text);
  AddNumber(notes.notes.size(), &text);
  for (const std::string& note : notes.notes) AddText(note, &text);
  return text;
}

absl::StatusOr<Notes> ReadNotes(absl::string_view text) {
  Reader reader(text);
  Notes notes;
  uint64_t version = 0, count = 0;
  bool good = reader.Number(&version) && version == kVersion && reader.Number(&notes.number) &&
              reader.Text(kMaxAgentName, &notes.agent) && reader.Count(sizeof(uint64_t), &count);
  if (good) notes.notes.resize(count);
  for (uint64_t i = 0; i < count && good; ++i)
    good = reader.Text(kMaxNotification, &notes.notes[i]);
  if (!good || !reader.AtEnd()) return Wrong("notifications cannot be read");
  return notes;
}

std::string WriteNumber(uint64_t number) {
  std::string text;
  AddNumber(number, &text);
  return text;
}

absl::StatusOr<uint64_t> ReadNumber(absl::string_view text) {
  Reader reader(text);
  uint64_t number = 0;
  if (reader.Number(&number) && reader.AtEnd()) return number;
  return Wrong("a number cannot be read");
}

std::string WriteQuestion(const Question& question) {
  return absl::StrCat(
      question.verb, "|", question.asker.address, "|", absl::Hex(question.asker.incarnation), "|",
      question.record_bytes > 0
          ? absl::StrCat("@", absl::Hex(question.record_id), ",", question.record_bytes)
          : absl::BytesToHexString(question.record));
}

absl::StatusOr<Question> ReadQuestion(absl::string_view text) {
  Question question;
  const std::vector<absl::string_view> fields = absl::StrSplit(text, '|');
  if (fields.size() != 4 || !IsAddress(fields[1]) ||
      !ReadHex(fields[2], &question.asker.incarnation)) {
    return Wrong("a question cannot be read");
  }
  question.verb = std::string(fields[0]);
  question.asker.address = std::string(fields[1]);
  absl::string_view record = fields[3];
  if (absl::ConsumePrefix(&record, "@")) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(record, ',');
    if (!ReadHex(halves.first, &question.record_id) ||
        !absl::SimpleAtoi(halves.second, &question.record_bytes) || question.record_bytes == 0) {
      return Wrong("the place of a record cannot be read");
    }
    if (question.record_bytes > kMaxRecord) {
      return absl::InvalidArgumentError(absl::StrCat("a record has ", question.record_bytes,
                                                     " bytes, and may have ", kMaxRecord,
                                                     ": post fewer spans at a time"));
    }
    return question;
  }
  const bool is_hex = record.size() % 2 == 0 && record.size() <= 2 * kMaxShortRecord &&
                      std::all_of(record.begin(), record.end(), absl::ascii_isxdigit);
  if (!is_hex) return Wrong("a record cannot be read");
  question.record = absl::HexStringToBytes(record);
  return question;
}

}  // namespace tryst::nixl
