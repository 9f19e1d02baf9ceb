// A message's fields in words: names, types, defaults, limits and the comments of its .proto file.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>

namespace ananke {

// One block per field, nested messages indented below the field that holds them. Comments are there where the
// descriptor was built from a plugin's note.
std::string describe_fields(const google::protobuf::Descriptor* message, int indent = 0);

// A field's default as the text format writes it; empty for a message.
std::string default_of(const google::protobuf::FieldDescriptor* field);

// The comment above a message or field, lines joined by '\n', without surrounding blanks.
std::string comment_of(const google::protobuf::Descriptor* message);
std::string comment_of(const google::protobuf::FieldDescriptor* field);

}  // namespace ananke
