# Sourced: BATCHYARD_AMQP_URL as files of logins, so that `ps` shows no password.
decoded() { printf '%b' "${1//%/\\x}"; }
rest=${BATCHYARD_AMQP_URL#*://}
login=${rest%%@*} address=${rest#*@}
host=${address%%[:/]*} port=${address#*:}
port=${port%%/*}
tenant=$(decoded "${login%%:*}") password=$(decoded "${login#*:}")
logins=$(mktemp -d)
trap 'rm -rf "$logins"' EXIT
printf "username:%s\npassword:%s\n" "$tenant" "$password" > "$logins/amqp"
# rabbitmqadmin needs RabbitMQ's management plugin, and its tag `management` for the tenant's user.
cat > "$logins/admin" <<END
[default]
hostname = $host
port = ${RABBITMQ_MANAGEMENT_PORT:-15672}
username = $tenant
password = $password
END
admin() { rabbitmqadmin -c "$logins/admin" -V / "$@"; }
