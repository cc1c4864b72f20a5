// An OpenID provider for tests. It knows one user, and asks for consent on its own pages.
// Its configuration is a JSON object in the first argument; it prints its issuer.
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const { clients, groups } = JSON.parse(process.argv[2]);
const server = createServer();
await new Promise((done) => server.listen(0, 'localhost', done));
const issuer = `http://localhost:${server.address().port}`;
const provider = new Provider(issuer, {
  clients,
  claims: { openid: ['sub', 'groups'], email: ['email', 'email_verified'], profile: [] },
  conformIdTokenClaims: false, // the ID token has the claims of the scopes
  features: { devInteractions: { enabled: true }, deviceFlow: { enabled: true }, rpInitiatedLogout: { enabled: true }, revocation: { enabled: true } },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, groups }),
  }),
  issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
  pkce: { required: () => true },
  cookies: { keys: ['tests only'] },
});
server.on('request', provider.callback());
console.log(issuer);
process.stdin.on('end', () => process.exit()).resume(); // ends with its test
