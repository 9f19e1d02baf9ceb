#include "launcher/arguments.h"

#include <boost/program_options.hpp>
#include <typeinfo>

#include "runtime/base/error.h"
#include "runtime/base/nearest.h"

namespace ananke {

namespace po = boost::program_options;

namespace {

bool is_unsigned(const std::type_info& type) {
  return type == typeid(unsigned) || type == typeid(unsigned long) || type == typeid(unsigned long long) ||
         type == typeid(unsigned short);
}

// The conversion itself takes -1 for the largest number.
void check_signs(const po::parsed_options& parsed) {
  for (const po::option& option : parsed.options) {
    const auto* known = parsed.description->find_nothrow(option.string_key, false);
    const auto* typed = known ? dynamic_cast<const po::typed_value_base*>(known->semantic().get()) : nullptr;
    if (typed == nullptr || !is_unsigned(typed->value_type())) continue;
    for (const std::string& value : option.value) {
      if (value.find('-') == std::string::npos) continue;
      fail(ErrorKind::usage, "--{} {} is no number of at least 0", option.string_key, value);
    }
  }
}

}  // namespace

void read_arguments(const std::vector<std::string>& words, const po::options_description& options,
                    const po::positional_options_description& positions, po::variables_map* values) {
  try {
    const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
    const po::parsed_options parsed =
        po::command_line_parser(words).options(options).positional(positions).style(style).run();
    check_signs(parsed);
    po::store(parsed, *values);
    po::notify(*values);
  } catch (const po::unknown_option& error) {
    std::vector<std::string> names;
    const std::string words_name = positions.max_total_count() > 0 ? positions.name_for_position(0) : "";
    for (const auto& option : options.options()) {
      if (option->long_name() != words_name) names.push_back("--" + option->long_name());
    }
    fail(ErrorKind::usage, "there is no option '{}'{}", error.get_option_name(),
         suggestion(error.get_option_name(), names));
  } catch (const po::too_many_positional_options_error&) {
    fail(ErrorKind::usage, "too many words without an option's name; quote a word that has blanks");
  } catch (const po::error& error) {
    fail(ErrorKind::usage, "{}", error.what());
  }
}

}  // namespace ananke
