// Text format with errors that a person can act on: file, line, column, what was written, the nearest valid name.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/config/schema.h"

namespace ananke {

enum class Reading {
  strict,
  // The first pass, before the plugins are known: unknown fields are skipped and any config message is let through
  // (its content is not kept).
  tolerant,
};

// A text and where its fields stand in it.
struct SourceText {
  std::string name;  // as it opens every message: the path as the person gave it
  std::string text;
  std::unique_ptr<google::protobuf::TextFormat::ParseInfoTree> tree;  // set by parse_text
};

// Throws Error(config) naming the file and the system's reason.
SourceText read_source(const std::filesystem::path& file);

// Fills `message` from the text. Throws Error(config): "job.textproto:12:5: ...", also for a config whose bytes, given
// as such, are not those of a plugin's message.
void parse_text(SourceText& source, const Schema& schema, Reading reading, google::protobuf::Message* message);

// Reads what the schema knows and returns the rest, one sentence each ("job.textproto:12:5: message ... has no field
// ..."). A config message that it does not know is let through without its content, and not named.
std::vector<std::string> parse_known(SourceText& source, const Schema& schema, google::protobuf::Message* message);

// The same for a piece of text without a place: errors open with `what`.
void parse_piece(const std::string& what, const std::string& text, const Schema& schema,
                 google::protobuf::Message* message);

// Deterministic; configs of plugins are expanded; reads back to an equal message.
std::string print_text(const google::protobuf::Message& message, const Schema& schema);

}  // namespace ananke
